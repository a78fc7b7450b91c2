"""The command line as a whole: quick help, one JSON object, exit codes, completion, and a reference that is up to date."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from openclaw_core import cli_checks, cli_docs, cli_options
from openclaw_core.cli import app
from openclaw_core.config import load_config, preset_names
from openclaw_core.loop.client import ServiceSilent
from openclaw_core.rundir import RunDir
from tests.inspection_parts import small_run
from tests.interrupts import interruptible
from tests.ports import free_ports

ROOT = Path(__file__).parents[2]
COMMANDS = sorted(get_command(app).commands)  # type: ignore[attr-defined]
HEAVY = {"openai", "torch", "ray", "httpx", "fastapi", "docker", "asyncssh", "numpy", "yaml", "rich", "structlog", "asyncio"}


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return small_run(tmp_path)


def start(*words: str, **variables: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "openclaw_core.cli", *words]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **variables}
    return subprocess.Popen(command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def ended(*words: str, **variables: str) -> tuple[int, str, str]:
    """Exit code, standard output and standard error."""
    process = start(*words, **variables)
    out, err = process.communicate(timeout=120)
    assert "Traceback" not in err
    return process.returncode, out, err


# ---- help


@pytest.mark.parametrize("words", [[], *([command] for command in COMMANDS)], ids=" ".join)
def test_help_brings_in_nothing_that_takes_its_time(words: list[str]) -> None:
    refused = HEAVY if words else HEAVY | {"pydantic"}  # typer itself reads the options of a command with it
    code = (
        "import sys; from openclaw_core.cli import main\n"
        "try: main()\n"
        f"except SystemExit as end: sys.exit(end.code or ' '.join(sorted({refused!r} & set(sys.modules))) or 0)"
    )
    command = [sys.executable, "-c", code, *words, "--help"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"Usage: {' '.join(['openclaw-rl', *words])} ")


def test_every_command_says_how_it_is_used_and_the_same_option_means_the_same() -> None:
    page = cli_docs.document()
    assert not re.search(r"^\* `[\w-]+`: .*\.\.\.$", page, re.MULTILINE), "a first sentence is too long for the list"
    said: dict[str, set[str]] = {}
    for name, words in re.findall(r"^\* `(--(?:runs|json|set|preset|cluster|run-dir))[^`]*`: ([^\[\n]*)", page, re.MULTILINE):
        said.setdefault(name, set()).add(words.strip())
    assert {name: len(words) for name, words in said.items() if name != "--run-dir"} == dict.fromkeys(
        ("--runs", "--json", "--set", "--preset", "--cluster"), 1
    )
    assert page.count("$ openclaw-rl ") > 2 * len(COMMANDS)


def test_the_reference_is_what_the_commands_say() -> None:
    assert (ROOT / "docs" / "CLI.md").read_text(encoding="utf-8") == cli_docs.document(), (
        "python -m openclaw_core.cli_docs > docs/CLI.md"
    )


# ---- results and exit codes


def test_each_result_is_one_object_on_standard_output(run: RunDir, tmp_path: Path) -> None:
    place = [str(run.path), "--json"]
    results: dict[str, dict[str, Any]] = {}
    for words in (
        ["config", "--json", "--set", "train.steps=5"],
        ["plan", "--json", "--preset", "4b-2nodes"],
        ["doctor", "--json", "--image", "--without", "packages"],
        ["turns", "list", *place],
        ["turns", "show", "aaaa1", *place],
        ["turns", "export", "--out", str(tmp_path / "turns.jsonl"), *place],
        ["keys", "add", *place, "ana"],
        ["keys", "list", *place],
        ["keys", "remove", *place, "ana"],
    ):
        if words[:2] == ["turns", "show"]:
            words = ["turns", "show", str(run.path), "aaaa1", "--json"]
        stdout = CliRunner().invoke(app, words).stdout
        results[" ".join(words[:2])] = json.loads(stdout)
        assert stdout.count("\n") == 1
    assert results["config --json"]["train.steps"] == 5
    assert results["plan --json"]["fits"] is True
    checks = {row["check"]: row for row in results["doctor --json"]["checks"]}
    assert checks["python"]["ok"] is True and checks["packages"]["counted"] is False
    assert len(results["turns list"]["turns"]) == 5
    assert results["turns show"]["turn_id"] == "aaaa1111-trained"
    assert results["turns export"] == {"path": str(tmp_path / "turns.jsonl"), "turns": 5}
    assert results["keys list"]["keys"] == [
        {"name": name, "ends": key[-4:]}
        for name, key in {"run": run.secrets().api_key, "ana": results["keys add"]["key"]}.items()
    ]
    assert results["keys remove"] == {"removed": "ana"}


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["config"], 0, ""),
        (["turns", "export", "r", "--out", "turns.csv"], 1, "must end with .jsonl or .parquet"),
        (["export-hf", "r", "--out", "model"], 1, "has no checkpoint"),
        (["config", "--set", "train.stepz=1"], 2, "did you mean train.steps"),
        (["turns", "list", "other"], 2, "no run 'other'"),
        (["turns", "list", "r", "--limit", "0"], 2, "--limit"),
        (["config", "--presett", "local-cpu"], 2, "--presett"),
        (["doctor", "--image", "--without", "nix"], 2, "no such check: nix"),
        (["evaluate", "r"], 3, "does not answer"),
    ],
)
def test_exit_codes_and_errors_as_people_and_programs_see_them(tmp_path: Path, words: list[str], code: int, says: str) -> None:
    run = small_run(tmp_path, free_ports())
    words = [str(run.path) if word == "r" else word for word in words]
    status, out, err = ended(*words)
    assert status == code and says in err and (code == 0 or out == "")
    status, out, err = ended(*words, "--json")
    assert status == code and says in err
    told = json.loads(out)
    if code:
        assert told["error"]["exit_code"] == code and says in told["error"]["message"]
    else:
        assert "error" not in told


def test_a_result_that_is_bad_is_a_result_and_no_error() -> None:
    words = ["plan", "--preset", "4b-2nodes", "--set", "train.recompute=none", "--json"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 1 and json.loads(done.stdout)["fits"] is False


def test_a_model_that_a_run_would_fetch_is_not_missing(tmp_path: Path) -> None:
    places = [part for name in ("models", "runs") for part in ("--set", f"paths.{name}={tmp_path / name}")]
    told = json.loads(CliRunner().invoke(app, ["doctor", "--json", *places]).stdout)
    assert {row["check"]: row["ok"] for row in told["checks"]}["model"] is True
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("as_json", [False, True])
def test_ctrl_c_ends_without_a_traceback(as_json: bool) -> None:
    code = (
        "import sys, time, typer; from openclaw_core.cli_output import run_app, say; app = typer.Typer()\n"
        "@app.command()\ndef wait(json: bool = False): say('ready'); time.sleep(60)\n"
        "sys.exit(run_app(app))"
    )
    command = [sys.executable, "-c", code, *(["--json"] if as_json else [])]
    process = subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=interruptible)
    assert process.stderr is not None and process.stderr.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130 and "Traceback" not in err
    assert out == "" if not as_json else json.loads(out)["error"] == {"message": "interrupted", "exit_code": 130}


def test_a_reader_that_has_seen_enough_is_no_traceback(run: RunDir) -> None:
    process = start("config")
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    assert "Traceback" not in process.stderr.read()
    process.wait(timeout=60)


def test_documented_codes_are_those_of_the_errors() -> None:
    assert ServiceSilent.exit_code == 3
    assert all(f"\n  {code} " in cli_docs.app.info.epilog for code in (0, 1, 2, 3, 130))  # type: ignore[operator]


# ---- completion


def completed(line: str, **variables: str) -> list[str]:
    """What bash is offered for the last word of ``line``."""
    words = line.split(" ")
    code, out, err = ended(_OPENCLAW_RL_COMPLETE="complete_bash", COMP_WORDS=line, COMP_CWORD=str(len(words) - 1), **variables)
    assert (code, err) == (0, "")
    return out.split()


def test_a_shell_completes_commands_options_and_values(run: RunDir) -> None:
    assert completed("openclaw-rl st") == ["status", "stop", "stage"]
    assert completed("openclaw-rl plan --pre") == ["--preset"]
    assert completed("openclaw-rl plan --preset 4b") == ["4b-1node", "4b-2nodes"]
    assert completed("openclaw-rl run --set train.steps") == ["train.steps=", "train.steps_per_rollout="]
    assert completed("openclaw-rl doctor --without por") == ["ports"]
    assert completed("openclaw-rl turns list r --status wa") == ["waiting"]
    assert completed("openclaw-rl stage down") == ["download-model"]
    for words in ("status", "stop", "turns list", "keys add", "evaluate", "shell train --run-id"):
        first, _, rest = words.partition(" --")
        option = f" --{rest}" if rest else ""
        assert completed(f"openclaw-rl {first} --runs {run.path.parent}{option} ") == ["r"], words


def test_the_script_that_a_shell_loads_is_for_this_program() -> None:
    code, out, _ = ended("--show-completion", "bash")
    assert code == 0 and "complete -o default -F _openclaw_rl_completion openclaw-rl" in out


def test_what_is_completed_is_what_there_is(tmp_path: Path) -> None:
    assert cli_options.presets() == preset_names()
    sources = [*(ROOT / "openclaw_core/cluster/host_checks").glob("*.py"), ROOT / "openclaw_core/cluster/checks.py"]
    named = {
        name
        for source in sources
        for name in re.findall(r'\b(?:Host)?Check\(\s*(?:[\w.]+,\s*)?"([\w -]+)"', source.read_text(encoding="utf-8"))
    }
    assert {"python", "npu health", "chat template"} <= named
    assert named <= set(cli_checks.CHECKS)
    assert load_config("local-cpu").preset in cli_options.presets()
