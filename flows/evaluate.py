"""An evaluation alone: the held-out problems, asked of a run that is alive."""

from __future__ import annotations

from prefect import flow
from prefect.client.schemas.objects import State

from flows.logs import log_to_prefect
from flows.parameters import Label, RunDirectory
from openclaw_core.stages import StageResult
from tasks.evaluate import evaluate


@flow(name="evaluate", flow_run_name="evaluate-{label}")
def evaluate_run(run_dir: RunDirectory, label: Label) -> State[StageResult]:
    """Evaluate the weights that the run serves now, and keep the report as evaluation/<label>.json."""
    log_to_prefect()
    return evaluate(run_dir, label)
