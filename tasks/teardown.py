"""Stage teardown."""

from __future__ import annotations

from prefect import task
from prefect.client.schemas.objects import State

from openclaw_core import stages
from openclaw_core.stages import StageResult
from tasks.policy import MUST_BE_TRUE_NOW, run_stage


@task(name="teardown", task_run_name="teardown", tags=["stage"], **MUST_BE_TRUE_NOW)
def teardown(run_dir: str) -> State[StageResult]:
    """Stop feeder, service and Ray head; the service writes a checkpoint first."""
    return run_stage(stages.teardown, run_dir)
