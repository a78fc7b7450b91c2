"""The feeder beside the train loop: switched on and off by it, and started again if it dies."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from prefect import task
from prefect.client.schemas.objects import State
from prefect.logging import get_run_logger

from openclaw_core.cluster.runtime import runtime_of
from openclaw_core.feeding import FeederGone, stop_feeder
from openclaw_core.rundir import RunDir
from openclaw_core.stages import StageResult
from tasks.policy import MUST_BE_TRUE_NOW, finished, opened

POLL_S = 1.0


class FeederSwitch:
    """What the train loop holds of the feeder task beside it."""

    def __init__(self) -> None:
        self.on = threading.Event()
        self.off = threading.Event()
        self.over = threading.Event()
        """Set by the task when it has ended, however it did."""


@task(name="feeder", task_run_name="feeder", tags=["stage"], retries=3, retry_delay_seconds=5, **MUST_BE_TRUE_NOW)
def feed(run_dir: str, switch: FeederSwitch) -> State[StageResult]:
    """Run ``openclaw-rl feed`` from switch-on to switch-off. Raises FeederGone if it dies: a retry starts it again."""
    _, run = opened(run_dir)
    while not switch.on.wait(POLL_S):
        if switch.off.is_set():
            return finished({"stage": "feeder", "status": "skipped", "detail": "the train loop ended before it began"})
    try:
        _watch(run, switch)
    finally:
        if switch.off.is_set():
            stop_feeder(run)
    return finished({"stage": "feeder", "status": "done", "detail": f"its log is {run.logs / 'feeder.log'}"})


def _watch(run: RunDir, switch: FeederSwitch) -> None:
    with runtime_of(run.config(), run) as runtime:
        started = runtime.start_feeder()
        get_run_logger().info("feeding, %s, log %s", started.where, started.log)
        while not switch.off.wait(runtime.look_every_s):
            feeder = runtime.feeder()
            if feeder is None:
                return  # it was told to stop
            if not feeder.alive:
                if runtime.feeder_finished():
                    return  # it saw that the run was finished
                raise FeederGone(f"the feeder has died ({feeder.log}):\n{feeder.tail}")


@contextlib.contextmanager
def feeding(run_dir: str) -> Iterator[FeederSwitch]:
    """A feeder task beside the block, and no feeder left after it."""
    switch = FeederSwitch()
    future = feed.submit(run_dir, switch)
    future.add_done_callback(lambda _future: switch.over.set())
    try:
        yield switch
    finally:
        switch.off.set()
        future.wait(timeout=60)
