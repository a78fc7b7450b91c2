"""A run that is resumed while its last process is still at the step with which it was to stop."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from prefect import flow

from flows.stand_in import await_last_attempt
from openclaw_core.config import load_config
from openclaw_core.driver import DriverNote, DriverState, note
from openclaw_core.rundir import RunDir, create_run

pytestmark = pytest.mark.usefixtures("prefect_server")


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return create_run(load_config("local-cpu", {"paths.runs": str(tmp_path)}), "r")


def at_its_step(run: RunDir) -> subprocess.Popen[bytes]:
    """A process that drives the run for flow run 1, says so, and suspends itself when a line is written to it."""
    say = f"note(RunDir(Path({str(run.path)!r})), '1', DriverState"
    code = (
        "import sys; from pathlib import Path; from openclaw_core.driver import *; from openclaw_core.rundir import RunDir; "
        f"{say}.WORKING); print('up', flush=True); sys.stdin.readline(); {say}.SUSPENDED); sys.stdin.readline()"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None and process.stdout.readline() == b"up\n"
    return process


@flow
def next_attempt(run: RunDir, flow_run: str) -> None:
    await_last_attempt(run, flow_run)


def test_it_goes_on_when_that_is_done(run: RunDir, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture):
    monkeypatch.setattr("flows.stand_in.LOOK_EVERY_S", 0.05)
    process = at_its_step(run)
    next_attempt(run, "another flow run, which is no concern of this one's")
    states: list[DriverState] = []

    def end_its_step() -> None:
        while "is still at its step" not in caplog.text:
            time.sleep(0.05)
        states.append(said(run).state)
        assert process.stdin is not None
        process.stdin.write(b"\n")
        process.stdin.flush()

    ending = threading.Thread(target=end_its_step)
    ending.start()
    next_attempt(run, "1")
    ending.join(10)
    assert [*states, said(run).state] == [DriverState.WORKING, DriverState.SUSPENDED]
    process.kill()
    process.wait()


def said(run: RunDir) -> DriverNote:
    last = DriverNote.read(run)
    assert last is not None
    return last


def test_one_that_was_killed_is_not_waited_for(run: RunDir):
    process = at_its_step(run)
    process.kill()
    process.wait()
    next_attempt(run, "1")
    note(run, "1", DriverState.WORKING)  # this process itself, as in a retry within it
    next_attempt(run, "1")
