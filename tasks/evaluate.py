"""Evaluations: the held-out problems before and after training, and the flow `evaluate`'s three kinds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from prefect import task
from prefect.artifacts import create_table_artifact
from prefect.client.schemas.objects import State
from prefect.states import Completed

from openclaw_core import stages
from openclaw_core.evaluation import commands
from openclaw_core.evaluation.tables import Row
from openclaw_core.rundir import RunDir
from openclaw_core.stages import StageResult
from tasks.policy import MUST_BE_TRUE_NOW, finished, opened

Kind = Literal["held-out", "sessions", "follow"]


@task(name="evaluate", task_run_name="evaluate-{label}", tags=["stage"], **MUST_BE_TRUE_NOW)
def evaluate(run_dir: str, label: str) -> State[StageResult]:
    """Ask the held-out problems; a report of that label is reused."""
    return finished(stages.evaluate(*opened(run_dir), label))


@task(name="evaluation", task_run_name="evaluation-{kind}", tags=["stage"], **MUST_BE_TRUE_NOW)
def evaluation(
    run_dirs: Sequence[str], kind: Kind, label: str | None, against: str | None, seeds: int | None
) -> State[dict[str, Any]]:
    """One of the three evaluations, shown as table artifacts ``evaluation-<kind>``."""
    runs = [RunDir(Path(run_dir)) for run_dir in run_dirs]
    if kind == "sessions":
        findings = commands.sessions(runs)
    elif kind == "follow":
        findings = commands.following(runs[0], seeds)
    else:
        findings = commands.held_out(runs[0], label, against)
    for title, rows in findings.tables:
        create_table_artifact(rows, key=f"evaluation-{kind}", description=title)
    return Completed(message="; ".join(_in_short(rows) for _, rows in findings.tables), data=findings.body)


def _in_short(rows: Sequence[Row]) -> str:
    """The last row, which is over all personas."""
    over_all = rows[-1]
    return f"{over_all['persona']}: {over_all.get('satisfied') or over_all['sessions']}"
