"""One rollout step as a monitored run of its own: collect → score → train → publish → report."""

from __future__ import annotations

from typing import Any

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.context import FlowRunContext
from prefect.logging.loggers import flow_run_logger
from prefect.runtime import flow_run as this_run

from openclaw_core.loop.client import PHASES
from openclaw_core.report.table import COLUMNS, describe
from tasks.step_phases import PHASE_TASKS
from tasks.suspension import suspended


def _run_name() -> str:
    first, last = this_run.parameters["step"], this_run.parameters.get("last")
    return f"step-{first:05d}" if last in (None, first) else f"steps-{first:05d}-{last:05d}"


# persist_result must stay False. A persisted step is matched to an old run by its position among the calls when the
# parent is retried: step 5 would be handed the result of step 0.
@flow(
    name="rollout-step",
    flow_run_name=_run_name,
    persist_result=False,
    validate_parameters=False,
)
def rollout_step(run_dir: str, step: int, last: int | None = None) -> State[None] | None:
    """Run the five phases of ``step``, and of those after it up to ``last`` (train.monitor_every)."""
    for number in range(step, (last or step) + 1):
        results: dict[str, dict[str, Any]] = {}
        for phase in PHASES:
            result = PHASE_TASKS[phase](run_dir, number)
            if isinstance(result, State):  # collect has ended suspended
                return suspended()
            results[phase] = result
        _log(number, results["report"])
    return None


def _log(step: int, metrics: dict[str, Any]) -> None:
    # Called from inside a task, get_run_logger() would write to that task's page rather than to this step's.
    context = FlowRunContext.get()
    if context is not None and context.flow_run is not None:
        words = ", ".join(f"{name} {describe(metrics.get(key))}" for name, key in COLUMNS.items())
        flow_run_logger(context.flow_run).info("step %d: %s", step, words)
