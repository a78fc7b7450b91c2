"""The feeder alone, against the gateway of a run that is alive."""

from __future__ import annotations

import time

from prefect import flow

from flows.logs import log_to_prefect
from flows.parameters import Minutes
from openclaw_core.stages import StageResult
from tasks.feeder import feeding


@flow(name="feeder")
def feeder(run_dir: str, minutes: Minutes = 10) -> StageResult:
    """Feed a run's gateway until the time is over or the flow is cancelled.

    Args:
        run_dir: runs/<run id> of a run that is alive.
        minutes: How long.
    """
    log_to_prefect()
    with feeding(run_dir) as switch:
        switch.on.set()
        time.sleep(60 * minutes)
    return {"stage": "feeder", "status": "done", "detail": f"fed for {minutes:g} minutes"}
