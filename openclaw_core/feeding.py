"""The feeder as a process beside the training: started, watched and ended by whoever drives the steps."""

from __future__ import annotations

import sys
import time

from openclaw_core.cluster.processes import OwnedProcess, Processes
from openclaw_core.errors import OpenClawError
from openclaw_core.loop.client import OnWait
from openclaw_core.rundir import RunDir

NAME = "feeder"
ABSENCE_S = 60.0
"""How long a feeder may be gone before a collection gives up: whoever owns it may be starting it again."""


class FeederGone(OpenClawError):
    """The feeder has ended though the training needs it; the message has its last lines."""


def start_feeder(run: RunDir) -> OwnedProcess:
    """Start ``openclaw-rl feed`` for the run, or take the one that is alive."""
    processes = Processes(run.processes)
    command = [sys.executable, "-m", "openclaw_core.cli", "feed", "--run-dir", str(run.path)]
    return processes.find(NAME) or processes.start(NAME, command, log_file=run.logs / f"{NAME}.log")


def stop_feeder(run: RunDir) -> None:
    """End it, if it is running."""
    Processes(run.processes).stop(NAME, grace_s=15)


def feeder_watch(run: RunDir) -> OnWait:
    """A watcher for ControlClient.run_phase: raises FeederGone where the run's feeder has been dead for ABSENCE_S.

    A run that never had a feeder of its own is fed by people, and is not watched.
    """
    processes = Processes(run.processes)
    last_alive = time.monotonic()

    def watch(_progress: str) -> None:
        nonlocal last_alive
        feeder = processes.recorded(NAME)
        if feeder is None or feeder.handle() is not None:
            last_alive = time.monotonic()
        elif time.monotonic() - last_alive > ABSENCE_S:
            raise FeederGone(f"the feeder has ended, so nobody asks the model anything ({feeder.log}):\n{feeder.log_tail(15)}")

    return watch
