"""Teardown alone, for a run whose flow failed and that nobody wants to retry."""

from __future__ import annotations

from prefect import flow
from prefect.client.schemas.objects import State

from flows.logs import log_to_prefect
from openclaw_core.stages import StageResult
from tasks.teardown import teardown


@flow(name="teardown")
def teardown_run(run_dir: str) -> State[StageResult]:
    """Stop feeder, service and Ray head; the service writes a checkpoint first.

    Args:
        run_dir: runs/<run id> of the run.
    """
    log_to_prefect()
    return teardown(run_dir)
