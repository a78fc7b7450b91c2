"""What a driver says of itself, and how it gives up when the run is stopped under it."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest

from openclaw_core.config import load_config
from openclaw_core.driver import DriverNote, DriverState, RunStopped, ask_to_stop, driving, note, unless_stopped
from openclaw_core.loop.client import ControlClient, ControlError
from openclaw_core.rundir import RunDir, create_run
from openclaw_core.status import RunState, look
from tests.control_stub import StubService
from tests.ports import free_ports
from tests.unit.test_cli_status import text

ENDS = {KeyboardInterrupt: DriverState.STOPPED, RunStopped: DriverState.STOPPED}


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return create_run(load_config("local-cpu", {"paths.runs": str(tmp_path), **free_ports()}), "r")


def said(run: RunDir) -> DriverNote:
    found = DriverNote.read(run)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("error", "state", "reason"),
    [
        (None, DriverState.DONE, ""),
        (KeyboardInterrupt(), DriverState.STOPPED, ""),
        (ControlError("no model"), DriverState.FAILED, "no model"),
        (AssertionError(), DriverState.FAILED, "AssertionError"),
    ],
)
def test_a_driver_says_how_it_ended(run: RunDir, error: BaseException | None, state: DriverState, reason: str) -> None:
    assert DriverNote.read(run) is None
    with pytest.raises(type(error)) if error is not None else nullcontext(), driving(run, None, ENDS):
        assert (said(run).state, said(run).pid, said(run).lost) == (DriverState.WORKING, os.getpid(), False)
        if error is not None:
            raise error
    assert (said(run).state, said(run).who, said(run).reason) == (state, "openclaw-rl run", reason)


def test_one_that_ended_without_a_word_is_lost(run: RunDir) -> None:
    say = (
        "from pathlib import Path; from openclaw_core.driver import *; from openclaw_core.rundir import RunDir; "
        f"note(RunDir(Path({str(run.path)!r})), '1', DriverState.WORKING)"
    )
    subprocess.run([sys.executable, "-c", say], check=True, timeout=60)
    assert said(run).lost
    reused = said(run).model_copy(update={"pid": os.getpid()})
    assert reused.lost, "another process has its number now"
    assert "flow run 1 has ended without a word" in status(run)[1]


@pytest.mark.parametrize("answer", ["it refuses", "it is gone"])
def test_a_driver_whose_run_is_stopped_is_told_so_and_not_what_broke(run: RunDir, answer: str) -> None:
    service = StubService()
    service.failures = {(1, "collect"): (500, "Internal Server Error")}
    ask_to_stop(run)
    with service.serving() as url:
        url = url if answer == "it refuses" else "http://127.0.0.1:9"
        client = ControlClient(url, service.token, unless=lambda: unless_stopped(run))
        with pytest.raises(RunStopped, match=r"r was stopped by `openclaw-rl stop`; .* goes on with it"):
            client.run_phase(1, "collect", deadline_s=60)
    with driving(run, None, ENDS):
        unless_stopped(run)  # a new driver has not been told
    with pytest.raises(RunStopped), driving(run, None, ENDS):
        ask_to_stop(run)
        raise ControlError("whatever a stage says whose service is gone")
    assert said(run).state is DriverState.STOPPED


def status(run: RunDir, service: StubService | None = None) -> tuple[RunState, str]:
    with ControlClient.of(run, run.config()) as client:
        if service is None:
            picture = look(run, run.config(), client)
        else:
            with service.serving(run.config().ports.control):
                picture = look(run, run.config(), client)
    return picture.state, text(picture, 200)


def test_status_tells_of_a_suspended_run_and_of_a_stage_that_failed(run: RunDir) -> None:
    service = StubService(token=run.secrets().control_token)
    note(run, "1", DriverState.WORKING)
    assert status(run, service)[0] is RunState.RUNNING and "flow run 1" not in status(run, service)[1]
    note(run, "1", DriverState.SUSPENDED)
    state, shown = status(run, service)
    assert state is RunState.SUSPENDED
    assert "flow run 1: suspended at" in shown and "left" not in shown and "*Resume* in Prefect's UI goes on" in shown
    assert status(run)[0] is RunState.NEW
    note(run, "1", DriverState.FAILED, "env-check: no Docker on host a")
    state, shown = status(run)
    assert state is RunState.FAILED
    assert "env-check: no Docker on host a" in shown and "openclaw-rl run --run-id r" in shown
