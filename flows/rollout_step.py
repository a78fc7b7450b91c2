"""One rollout step as a monitored run of its own: collect → score → train → publish → report."""

from __future__ import annotations

from typing import Any

from prefect import flow
from prefect.context import FlowRunContext
from prefect.logging.loggers import flow_run_logger

from openclaw_core.loop.client import PHASES
from tasks.reporting import COLUMNS, describe
from tasks.step_phases import PHASE_TASKS


# persist_result must stay False. A persisted step is matched to an old run by its position among the calls when the
# parent is retried: step 5 would be handed the result of step 0.
@flow(
    name="rollout-step",
    flow_run_name="step-{step:05d}",
    persist_result=False,
    validate_parameters=False,
)
def rollout_step(run_dir: str, step: int) -> dict[str, Any]:
    """Run the five phases of ``step`` and return its metrics."""
    results = {phase: PHASE_TASKS[phase](run_dir, step) for phase in PHASES}
    metrics = results["report"]
    _log(step, metrics)
    return metrics


def _log(step: int, metrics: dict[str, Any]) -> None:
    # Called from inside a task, get_run_logger() would write to that task's page rather than to this step's.
    context = FlowRunContext.get()
    if context is not None and context.flow_run is not None:
        words = ", ".join(f"{name} {describe(metrics.get(key))}" for name, key in COLUMNS.items())
        flow_run_logger(context.flow_run).info("step %d: %s", step, words)
