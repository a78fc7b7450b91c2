"""How the commands of the launch machine end."""

from __future__ import annotations

import subprocess
import sys

import pytest
import typer

from flows.command import run_app
from openclaw_core.cluster.errors import ClusterError
from openclaw_core.config import ConfigError


@pytest.mark.parametrize(("error", "code"), [(ConfigError("no preset [x]"), 2), (ClusterError("[red] is away"), 1)])
def test_a_known_error_is_one_message_and_an_exit_code(
    error: Exception, code: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    app = typer.Typer()

    @app.command()
    def fail() -> None:  # pyright: ignore[reportUnusedFunction]
        raise error

    monkeypatch.setattr(sys, "argv", ["command"])
    with pytest.raises(SystemExit) as ended:
        run_app(app)
    assert (ended.value.code, capsys.readouterr().out) == (code, f"error: {error}\n")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("flows.operator", "keep-cluster", "x", "--preset", "nonsense", "--file", "/nowhere"), "/nowhere cannot be read"),
        (("flows.launcher", "run", "--preset", "nonsense"), "no preset 'nonsense'"),
    ],
)
def test_bad_parameters_are_told_alike_by_both_programs(words: tuple[str, ...], message: str) -> None:
    done = subprocess.run([sys.executable, "-m", *words], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2 and done.stdout.startswith(f"error: {message}") and "Traceback" not in done.stderr
