"""An evaluation alone: the held-out problems, asked of a run that is alive."""

from __future__ import annotations

from prefect import flow
from prefect.client.schemas.objects import State

from flows.logs import log_to_prefect
from openclaw_core.stages import StageResult
from tasks.evaluate import evaluate


@flow(name="evaluate", flow_run_name="evaluate-{label}")
def evaluate_run(run_dir: str, label: str) -> State[StageResult]:
    """Evaluate the weights that the run serves now.

    Args:
        run_dir: runs/<run id> of a run that is alive.
        label: The report is kept as evaluation/<label>.json.
    """
    log_to_prefect()
    return evaluate(run_dir, label)
