"""Stage launch-ray."""

from __future__ import annotations

from prefect import task
from prefect.client.schemas.objects import State

from openclaw_core import stages
from openclaw_core.stages import StageResult
from tasks.policy import MUST_BE_TRUE_NOW, opened, run_stage
from tasks.reporting import show_placement


@task(name="launch-ray", task_run_name="launch-ray", tags=["stage"], **MUST_BE_TRUE_NOW)
def launch_ray(run_dir: str) -> State[StageResult]:
    """Start the run's Ray head, or take up the one that is alive."""
    config, run = opened(run_dir)
    show_placement(config, run.run_id)
    return run_stage(stages.launch_ray, run_dir)
