"""Stage env-check: never cached, since what was true for the last attempt may not be now."""

from __future__ import annotations

from dataclasses import asdict

from prefect import task
from prefect.artifacts import create_table_artifact
from prefect.client.schemas.objects import State

from openclaw_core.cluster.checks import check_machine
from openclaw_core.stages import StageResult, env_verdict
from tasks.policy import MUST_BE_TRUE_NOW, finished, opened


@task(name="env-check", task_run_name="env-check", tags=["stage"], **MUST_BE_TRUE_NOW)
def env_check(run_dir: str) -> State[StageResult]:
    """Check the machine. The table is kept as an artifact, also where the check fails."""
    config, run = opened(run_dir)
    rows = check_machine(config, run)
    table = [{**asdict(row), "ok": "yes" if row.ok else "NO", "advice": "" if row.ok else row.advice} for row in rows]
    create_table_artifact(table, key="env-check", description=f"Run {run.run_id}: is this machine fit for it?")
    return finished(env_verdict(rows))
