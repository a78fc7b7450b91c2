"""What an operator's machine runs: the systemd units, `make up` and `make down`."""

from __future__ import annotations

import configparser
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from flows.local_prefect import POOL, LocalPrefect
from openclaw_core.config import load_config

ROOT = Path(__file__).parents[2]
UNITS = sorted((ROOT / "ops/systemd").glob("*.service"))
HOME = "/opt/openclaw-rl"


def unit(name: str) -> tuple[configparser.ConfigParser, list[str]]:
    """Its sections, and every command line in order; a parser of INI files keeps one of several lines of a name."""
    text = (ROOT / "ops/systemd" / f"openclaw-prefect-{name}.service").read_text()
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # pyright: ignore[reportAttributeAccessIssue]
    parser.read_string(text)
    return parser, re.findall(r"^Exec\w+=-?(.+)$", text, re.MULTILINE)


def environment() -> dict[str, str]:
    lines = (ROOT / "ops/systemd/openclaw.env").read_text().splitlines()
    pairs = (line.split("=", 1) for line in lines if line and not line.startswith("#"))
    return {name: value.strip("'") for name, value in pairs}  # quoted as systemd wants it


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_takes_the_units(tmp_path: Path) -> None:
    for file in UNITS:
        # Paths and users of this machine: systemd-analyze looks whether they are there.
        text = re.sub(rf"{HOME}/\.venv/bin/python", "/bin/true", file.read_text()).replace(HOME, str(ROOT))
        (tmp_path / file.name).write_text(text.replace("User=openclaw", "User=root"))
    command = ["systemd-analyze", "verify", *(str(tmp_path / file.name) for file in UNITS)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_there_is_a_unit_for_the_server_and_one_for_the_worker() -> None:
    assert [file.name for file in UNITS] == ["openclaw-prefect-server.service", "openclaw-prefect-worker.service"]
    for name in ("server", "worker"):
        parser, commands = unit(name)
        assert set(parser.sections()) == {"Unit", "Service", "Install"}
        assert parser["Install"]["WantedBy"] == "multi-user.target" and parser["Service"]["User"] == "openclaw"
        assert parser["Service"]["WorkingDirectory"] == HOME and all(line.startswith(f"{HOME}/.venv/") for line in commands)
    worker, commands = unit("worker")
    assert worker["Unit"]["Requires"] == "openclaw-prefect-server.service" == worker["Unit"]["After"]
    assert commands[-1].endswith(f"worker start --pool {POOL} --type process")


def test_the_units_run_with_what_make_up_gives() -> None:
    prefect = LocalPrefect(Path(HOME) / ".state", load_config("local-cpu").ports.prefect)
    given = prefect._environment()  # pyright: ignore[reportPrivateUsage]
    ours = environment()
    assert ours.pop("PYTHONPATH") == HOME
    assert ours == given | {"OPENCLAW_HOME": HOME}
    (server,) = [line for line in unit("server")[1] if "server start" in line]
    assert f"--host 127.0.0.1 --port {prefect.port}" in server


def test_the_worker_deploys_what_this_checkout_has() -> None:
    pools = {each["work_pool"]["name"] for each in yaml.safe_load((ROOT / "prefect.yaml").read_text())["deployments"]}
    commands = [line.split(" -m ")[1] for line in unit("worker")[1]]
    assert pools == {POOL}
    assert commands[:4] == [
        "prefect block register --module blocks",
        f"prefect work-pool create {POOL} --type process",
        "prefect deploy --all --no-prompt",
        "flows.crashed",
    ]


@pytest.mark.parametrize(("target", "command"), [("up", "up"), ("down", "down")])
def test_the_makefile_calls_them(target: str, command: str) -> None:
    makefile = (ROOT / "Makefile").read_text()
    assert re.search(rf"^{target}:.*\n\t@.*-m flows\.operator {command}", makefile, re.MULTILINE)
