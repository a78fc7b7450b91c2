"""The trained weights in Hugging Face form."""

from __future__ import annotations

from prefect import task
from prefect.client.schemas.objects import State

from openclaw_core import stages
from openclaw_core.stages import StageResult
from tasks.policy import MUST_BE_TRUE_NOW, run_stage


@task(name="export", task_run_name="export", tags=["stage"], **MUST_BE_TRUE_NOW)
def export(run_dir: str) -> State[StageResult]:
    """Have the service write the published weights as a model directory."""
    return run_stage(stages.export, run_dir)
