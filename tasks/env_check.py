"""Stage env-check: never cached, since what was true for the last attempt may not be now."""

from __future__ import annotations

from dataclasses import asdict

from prefect import task
from prefect.artifacts import create_table_artifact
from prefect.client.schemas.objects import State

from openclaw_core import stages
from openclaw_core.stages import Row, StageResult, env_verdict
from tasks.policy import MUST_BE_TRUE_NOW, finished, opened


@task(name="env-check", task_run_name="env-check", tags=["stage"], **MUST_BE_TRUE_NOW)
def env_check(run_dir: str) -> State[StageResult]:
    """Check this machine and the hosts. The table is kept as an artifact, also where the check fails."""
    config, run = opened(run_dir)
    rows = stages.look_at_everything(config, run)
    create_table_artifact([_cells(row) for row in rows], key="env-check", description=f"Run {run.run_id}: is all fit for it?")
    return finished(env_verdict(rows))


def _cells(row: Row) -> dict[str, str]:
    values = asdict(row)  # pyright: ignore[reportArgumentType]
    return {"host": "this machine", **values, "ok": "yes" if row.ok else "NO", "advice": "" if row.ok else values["advice"]}
