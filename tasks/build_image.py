"""Stage build-image."""

from __future__ import annotations

from prefect import task
from prefect.client.schemas.objects import State

from openclaw_core import stages
from openclaw_core.stages import StageResult
from tasks.policy import PRODUCES_FILES, produce


@task(name="build-image", task_run_name="build-image", tags=["stage"], **PRODUCES_FILES)
def build_image(run_dir: str) -> State[StageResult]:
    """Build the container image of the cluster's hosts; skipped with a reason where there are none."""
    return produce(stages.build_image, run_dir)
