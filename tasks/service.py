"""The training service: a Ray job that the train loop starts, and starts again when it has fallen silent."""

from __future__ import annotations

from prefect import task
from prefect.client.schemas.objects import State

from openclaw_core import stages
from openclaw_core.stages import StageResult
from tasks.policy import MUST_BE_TRUE_NOW, run_stage


@task(name="start-service", task_run_name="start-service", tags=["stage"], **MUST_BE_TRUE_NOW)
def start_service(run_dir: str) -> State[StageResult]:
    """Attach to the service that answers, or submit a new one and wait until it is ready."""
    return run_stage(stages.attach_service, run_dir)


@task(name="restart-service", task_run_name="restart-service", tags=["stage"], **MUST_BE_TRUE_NOW)
def restart_service(run_dir: str) -> State[StageResult]:
    """End a service that has fallen silent and submit it again; it resumes from its checkpoint and the ledger."""
    return run_stage(stages.restart_service, run_dir)
