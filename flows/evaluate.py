"""An evaluation alone: held-out problems, asked of a run that is alive, or how many sessions people need."""

from __future__ import annotations

from typing import Annotated, Any

from prefect import flow
from prefect.client.schemas.objects import State
from pydantic import Field

from flows.logs import log_to_prefect
from tasks.evaluate import Kind, evaluation

Seeds = Annotated[int, Field(ge=1)]


@flow(name="evaluate", flow_run_name="evaluate-{kind}")
def evaluate_run(
    run_dir: str,
    kind: Kind = "held-out",
    label: str | None = None,
    against: str | None = None,
    seeds: Seeds | None = None,
    more_runs: list[str] | None = None,
) -> State[dict[str, Any]]:
    """Evaluate a run; the result is a table artifact (docs/EVALUATION.md).

    Args:
        run_dir: runs/<run id>. Held-out and follow ask it, so it must be alive; sessions reads its ledger.
        kind: held-out - the satisfied share on held-out problems. sessions - sessions to convergence of the run's own
            sessions. follow - the same for seeds that are asked beside the run, until it ends.
        label: Held-out - the report is kept as evaluation/<label>.json; default version-<served>.
        against: Held-out - label of an earlier report to compare with, as before.
        seeds: Follow - how many; default evaluation.convergence_seeds of the run.
        more_runs: Sessions - directories of more runs, each a trial.
    """
    log_to_prefect()
    return evaluation([run_dir, *(more_runs or [])], kind, label, against, seeds)
