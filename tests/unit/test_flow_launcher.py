"""`make run` refuses what cannot work before it starts anything."""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from flows.launcher import (
    KnownRuns,
    _check_ports,  # pyright: ignore[reportPrivateUsage]
    app,
)
from openclaw_core.cluster.errors import ClusterError
from openclaw_core.cluster.processes import Processes
from openclaw_core.config import ConfigError, load_config
from openclaw_core.driver import DriverState, note
from openclaw_core.rundir import RunDir, create_run
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


@contextmanager
def run_up(runs: Path, ports: dict[str, int], state: DriverState) -> Iterator[RunDir]:
    """A run with a Ray head, as far as can be seen from outside, and what its flow run last said of itself."""
    run = create_run(load_config("local-cpu", {"paths.runs": str(runs), **ports}), "up")
    note(run, "1", state)
    port = ports["ports.ray_gcs"]
    listen = f"import socket, time; s = socket.create_server(('', {port})); print('up', flush=True); time.sleep(60)"
    with Processes(run.processes).owned("ray-head", [sys.executable, "-c", listen], log_file=runs / "log"):
        while "up" not in (runs / "log").read_text():
            time.sleep(0.05)
        yield run


def test_a_run_that_was_left_up_is_named_with_the_way_to_end_it(tmp_path: Path):
    ports = free_ports()
    with run_up(tmp_path / "runs", ports, DriverState.FAILED) as run:
        KnownRuns(tmp_path).add(run)
        result = launch(tmp_path, ports=ports)
    assert "run up is still up, left for a retry after a failure" in str(result.exception)
    assert f"port {ports['ports.ray_gcs']} (ports.ray_gcs) is taken by pid" in str(result.exception)


def test_a_run_that_is_at_work_is_waited_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """By the flow: tests/drills/test_stops.py."""
    with run_up(tmp_path / "runs", free_ports(), DriverState.WORKING) as run:
        _check_ports(run.config(), KnownRuns(tmp_path))
    assert "This machine is held by run up; the new one waits for it" in capsys.readouterr().out


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
