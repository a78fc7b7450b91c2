"""The five phases of a rollout step as tasks: each asks the service for its phase, or joins it where it runs, and waits."""

from __future__ import annotations

from typing import Any

from prefect import Task, task
from prefect.client.schemas.objects import State
from prefect.exceptions import Pause

from openclaw_core.driver import drivers_client
from openclaw_core.feeding import feeder_watch
from openclaw_core.loop.client import PHASES, OnWait, phase_deadlines
from openclaw_core.rundir import RunDir
from tasks.policy import MUST_BE_TRUE_NOW, opened
from tasks.suspension import raise_if_suspended, suspended


def _run_phase(phase: str, run_dir: str, step: int) -> dict[str, Any]:
    config, run = opened(run_dir)
    watch = _while_collecting(run) if phase == "collect" else None
    with drivers_client(run, config) as client:
        return client.run_phase(step, phase, deadline_s=phase_deadlines(config)[phase], on_wait=watch)


def _while_collecting(run: RunDir) -> OnWait:
    feeder = feeder_watch(run)

    def watch(progress: str) -> None:
        raise_if_suspended()
        feeder(progress)

    return watch


def _phase_task(phase: str) -> Task[[str, int], Any]:
    # Without tags: for each tagged task Prefect asks the server for concurrency limits, a request a phase.
    @task(name=phase, task_run_name=phase, **MUST_BE_TRUE_NOW)
    def run_phase(run_dir: str, step: int) -> dict[str, Any] | State[None]:
        try:
            return _run_phase(phase, run_dir, step)
        except Pause:
            return suspended()

    return run_phase


PHASE_TASKS = {phase: _phase_task(phase) for phase in PHASES}
