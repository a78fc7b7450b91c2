"""What a run's driver last said of itself: at work, suspended, failed, and why; and how it is told to give up.

The driver is the process that goes from stage to stage and from step to step: a flow run of Prefect's, or `openclaw-rl run`.
What it says lies in the run's directory, for `openclaw-rl status`, which asks no Prefect.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from typing import Self

import psutil
from pydantic import BaseModel, ConfigDict

from openclaw_core.cluster.processes import live_process
from openclaw_core.config import RunConfig
from openclaw_core.errors import OpenClawError
from openclaw_core.loop.client import ControlClient
from openclaw_core.rundir import RunDir, write_whole


class RunStopped(OpenClawError):
    """`openclaw-rl stop` has ended the run under its driver."""


class DriverState(StrEnum):
    """How a driver is."""

    WORKING = "working"
    SUSPENDED = "suspended"
    FAILED = "failed"
    STOPPED = "stopped"
    """By a person: cancelled, Ctrl-C or `openclaw-rl stop`."""
    DONE = "done"


class DriverNote(BaseModel):
    """driver.json: written by the driver whenever ``state`` changes."""

    model_config = ConfigDict(frozen=True)
    flow_run: str | None
    """Prefect's id of it; None: `openclaw-rl run`."""
    state: DriverState
    reason: str = ""
    """Why it failed."""
    at: float
    """Unix time."""
    pid: int
    started: float
    """Of its process, Unix time."""

    @classmethod
    def read(cls, run: RunDir) -> Self | None:
        """None where no driver has said anything."""
        try:
            return cls.model_validate_json(run.driver_file.read_text())
        except FileNotFoundError:
            return None

    @property
    def who(self) -> str:
        """It, in words."""
        return f"flow run {self.flow_run}" if self.flow_run else "openclaw-rl run"

    @property
    def lost(self) -> bool:
        """Whether it has ended without a word. Only its own machine can tell."""
        return self.state is DriverState.WORKING and live_process(self.pid, self.started) is None

    @property
    def at_work_elsewhere(self) -> bool:
        """Whether it is at work in another process of this machine."""
        return self.state is DriverState.WORKING and not self.lost and self.pid != os.getpid()


def note(run: RunDir, flow_run: str | None, state: DriverState, reason: str = "") -> None:
    """Say it."""
    started = psutil.Process().create_time()
    said = DriverNote(flow_run=flow_run, state=state, reason=reason, at=time.time(), pid=os.getpid(), started=started)
    write_whole(run.driver_file, said.model_dump_json(), 0o644)


@contextmanager
def driving(run: RunDir, flow_run: str | None, ends: Mapping[type[BaseException], DriverState]) -> Iterator[None]:
    """The block drives the run. ``ends``: how it stands after these exceptions; after others it has failed.

    Raises RunStopped in place of what broke because `openclaw-rl stop` has ended the run.
    """
    run.stop_file.unlink(missing_ok=True)
    note(run, flow_run, DriverState.WORKING)
    try:
        with _told_of_stop(run):
            yield
    except BaseException as error:
        state = next((state for kind, state in ends.items() if isinstance(error, kind)), DriverState.FAILED)
        note(run, flow_run, state, str(error) or type(error).__name__ if state is DriverState.FAILED else "")
        raise
    note(run, flow_run, DriverState.DONE)


@contextmanager
def _told_of_stop(run: RunDir) -> Iterator[None]:
    try:
        yield
    except OpenClawError:
        unless_stopped(run)
        raise


def drivers_client(run: RunDir, config: RunConfig) -> ControlClient:
    """A client of the run's service that raises RunStopped where that is silent, or fails, because the run was stopped."""
    return ControlClient.of(run, config, unless=lambda: unless_stopped(run))


def ask_to_stop(run: RunDir) -> None:
    """Have whoever drives the run give up: what it waits for is being ended."""
    run.stop_file.touch()


def unless_stopped(run: RunDir) -> None:
    """Raises RunStopped after ``ask_to_stop``, until a driver takes the run up again."""
    if run.stop_file.exists():
        again = f"Retry in Prefect, or `openclaw-rl run --run-id {run.run_id}` with the same parameters, goes on with it"
        raise RunStopped(f"run {run.run_id} was stopped by `openclaw-rl stop`; {again}")
