"""Stage distribute-image."""

from __future__ import annotations

from prefect import task
from prefect.client.schemas.objects import State

from openclaw_core import stages
from openclaw_core.stages import StageResult
from tasks.policy import PRODUCES_FILES, produce


@task(name="distribute-image", task_run_name="distribute-image", tags=["stage"], **PRODUCES_FILES)
def distribute_image(run_dir: str) -> State[StageResult]:
    """Bring the image to every host; skipped with a reason where there are none."""
    return produce(stages.distribute_image, run_dir)
