"""The feeder beside the training: started, watched and ended by whoever drives the steps."""

from __future__ import annotations

import time

from openclaw_core.cluster.errors import ClusterError
from openclaw_core.cluster.runtime import FeederState, runtime_of
from openclaw_core.errors import OpenClawError
from openclaw_core.loop.client import OnWait
from openclaw_core.rundir import RunDir

ABSENCE_S = 60.0
"""How long a feeder may be gone before a collection gives up: whoever owns it may be starting it again."""


class FeederGone(OpenClawError):
    """The feeder has ended though the training needs it; the message has its last lines."""


def start_feeder(run: RunDir) -> FeederState:
    """Start ``openclaw-rl feed`` for the run, or take the one that is alive."""
    with runtime_of(run.config(), run) as runtime:
        return runtime.start_feeder()


def feeder_state(run: RunDir) -> FeederState | None:
    """None where the run has no feeder of its own, or no longer."""
    with runtime_of(run.config(), run) as runtime:
        return runtime.feeder()


def stop_feeder(run: RunDir) -> None:
    """End it, if it is running."""
    with runtime_of(run.config(), run) as runtime:
        runtime.stop_feeder()


def feeder_watch(run: RunDir) -> OnWait:
    """A watcher for ControlClient.run_phase: raises FeederGone where the run's feeder has been dead for ABSENCE_S, ClusterError
    where its host has not been reached for so long.

    A run that never had a feeder of its own is fed by people, and is not watched.
    """
    last_alive = time.monotonic()

    def watch(_progress: str) -> None:
        nonlocal last_alive
        try:
            feeder = feeder_state(run)
        except ClusterError:  # one look over SSH may fail; the service may still be there
            if time.monotonic() - last_alive > ABSENCE_S:
                raise
            return
        if feeder is None or feeder.alive:
            last_alive = time.monotonic()
        elif time.monotonic() - last_alive > ABSENCE_S:
            raise FeederGone(f"the feeder has ended, so nobody asks the model anything ({feeder.log}):\n{feeder.tail}")

    return watch
