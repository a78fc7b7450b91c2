"""`make run` refuses what cannot work before it starts anything."""

from __future__ import annotations

import socket
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from flows.launcher import KnownRuns, app
from openclaw_core.cluster.errors import ClusterError
from openclaw_core.cluster.processes import Processes
from openclaw_core.config import ConfigError, load_config
from openclaw_core.rundir import create_run
from tests.ports import free_ports


def launch(state: Path, *arguments: str, ports: dict[str, int] | None = None) -> Any:
    settings = [part for name, port in (ports or free_ports()).items() for part in ("--set", f"{name}={port}")]
    return CliRunner().invoke(app, ["run", "--state", str(state), *settings, *arguments])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--preset", "local-gpu"], "no preset 'local-gpu'; there are: "),
        (["--steps", "0"], "train.steps: Input should be greater than or equal to 1"),
        (["--set", "rollout.batch_size=0"], "rollout.batch_size: Input should be greater than or equal to 1"),
        (["--set", "rollout.batchsize=8"], "no parameter 'rollout.batchsize'; did you mean rollout.batch_size"),
        (["--set", "rollout.batch_size"], "'rollout.batch_size' is not name=value"),
    ],
)
def test_bad_parameters_are_named_and_nothing_is_started(tmp_path: Path, arguments: list[str], message: str):
    result = launch(tmp_path / "state", *arguments)
    assert isinstance(result.exception, ConfigError)
    assert message in str(result.exception)
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize("name", ["gateway", "control", "ray_gcs", "ray_dashboard", "ray_client", "prefect"])
def test_a_taken_port_is_named_and_nothing_is_started(tmp_path: Path, name: str):
    ports = free_ports()
    with socket.create_server(("127.0.0.1", ports[f"ports.{name}"])):
        result = launch(tmp_path / "state", ports=ports)
    assert isinstance(result.exception, ClusterError)
    assert f"port {ports[f'ports.{name}']} (ports.{name}) is taken by pid" in str(result.exception)
    assert not Processes(tmp_path / "state" / "processes").alive()


def test_a_run_that_was_left_up_is_named_with_the_way_to_end_it(tmp_path: Path):
    ports = free_ports()
    run = create_run(load_config("local-cpu", {"paths.runs": str(tmp_path / "runs"), **ports}), "left-up")
    KnownRuns(tmp_path).add(run)
    port = ports["ports.ray_gcs"]
    listen = f"import socket, time; s = socket.create_server(('', {port})); print('up', flush=True); time.sleep(60)"
    with Processes(run.processes).owned("ray-head", [sys.executable, "-c", listen], log_file=tmp_path / "log"):
        while "up" not in (tmp_path / "log").read_text():
            time.sleep(0.05)
        result = launch(tmp_path, ports=ports)
    assert "run left-up is still up, left for a retry after a failure" in str(result.exception)


def test_stopping_nothing_is_no_error(tmp_path: Path):
    result = CliRunner().invoke(app, ["stop", "--state", str(tmp_path)])
    assert (result.exit_code, result.output) == (0, "nothing was running\n")


def test_runs_whose_directory_is_gone_are_forgotten(tmp_path: Path):
    known = KnownRuns(tmp_path)
    run = create_run(load_config("local-cpu", {"paths.runs": str(tmp_path)}), "r")
    known.add(run)
    assert known.all() == [run]
    run.config_file.unlink()
    assert known.all() == []
