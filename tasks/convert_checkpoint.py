"""Stage convert-checkpoint."""

from __future__ import annotations

from prefect import task
from prefect.client.schemas.objects import State

from openclaw_core import stages
from openclaw_core.stages import StageResult
from tasks.policy import PRODUCES_FILES, produce


@task(name="convert-checkpoint", task_run_name="convert-checkpoint", tags=["stage"], **PRODUCES_FILES)
def convert_checkpoint(run_dir: str) -> State[StageResult]:
    """Convert the model to the trainer's format; that of an earlier run is reused."""
    return produce(stages.convert_checkpoint, run_dir)
