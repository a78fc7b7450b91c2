"""Teardown alone, for a run whose flow failed and that nobody wants to retry."""

from __future__ import annotations

from prefect import flow
from prefect.client.schemas.objects import State

from flows.logs import log_to_prefect
from flows.parameters import RunDirectory
from openclaw_core.stages import StageResult
from tasks.teardown import teardown


@flow(name="teardown")
def teardown_run(run_dir: RunDirectory) -> State[StageResult]:
    """Stop feeder, service and Ray head of the run; the service writes a checkpoint first."""
    log_to_prefect()
    return teardown(run_dir)
