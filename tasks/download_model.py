"""Stage download-model."""

from __future__ import annotations

from prefect import task
from prefect.client.schemas.objects import State

from openclaw_core import stages
from openclaw_core.stages import StageResult
from tasks.policy import PRODUCES_FILES, produce


@task(name="download-model", task_run_name="download-model", tags=["stage"], **PRODUCES_FILES)
def download_model(run_dir: str) -> State[StageResult]:
    """Fetch the model's files; those of an earlier run are reused."""
    return produce(stages.download_model, run_dir)
