"""The held-out evaluation, before and after training."""

from __future__ import annotations

from prefect import task
from prefect.client.schemas.objects import State

from openclaw_core import stages
from openclaw_core.stages import StageResult
from tasks.policy import MUST_BE_TRUE_NOW, finished, opened


@task(name="evaluate", task_run_name="evaluate-{label}", tags=["stage"], **MUST_BE_TRUE_NOW)
def evaluate(run_dir: str, label: str) -> State[StageResult]:
    """Ask the held-out problems; a report of that label is reused."""
    return finished(stages.evaluate(*opened(run_dir), label))
