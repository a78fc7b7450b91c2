"""How stage tasks are cached, and how each of them calls its plain function."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypedDict
from uuid import uuid4

from prefect.cache_policies import INPUTS, NO_CACHE, RUN_ID, CacheKeyFnPolicy, CachePolicy
from prefect.client.schemas.objects import State
from prefect.context import TaskRunContext
from prefect.logging import get_run_logger
from prefect.states import Completed

from openclaw_core.cluster.outputs import outputs_changed, record_outputs
from openclaw_core.config import RunConfig
from openclaw_core.rundir import RunDir
from openclaw_core.stages import Stage, StageResult


class Caching(TypedDict):
    """Options of ``@task``."""

    cache_policy: CachePolicy
    persist_result: bool


def _task_name(context: TaskRunContext, parameters: dict[str, Any]) -> str:
    return context.task.name


def _still_there(context: TaskRunContext, parameters: dict[str, Any]) -> str:
    """A key of its own where something of what the stage left is lost: Prefect looks at its own result alone."""
    config, run = opened(parameters["run_dir"])
    return uuid4().hex if outputs_changed(context.task.name, config, run) else "there"


# The task's name belongs to the key: stages have the same inputs, and one would be handed the result of another.
PRODUCES_FILES: Caching = {
    "cache_policy": CacheKeyFnPolicy(cache_key_fn=_task_name) + CacheKeyFnPolicy(cache_key_fn=_still_there) + INPUTS + RUN_ID,
    "persist_result": True,
}
"""Cached within one flow run: its retry skips what is done and still there; another run finds the files and says Reused. Not
keyed by the source: mending a bug must not undo finished work."""

MUST_BE_TRUE_NOW: Caching = {"cache_policy": NO_CACHE, "persist_result": False}
"""Runs in every attempt. ``persist_result`` is said explicitly, since None inherits it from the flow."""


def opened(run_dir: str) -> tuple[RunConfig, RunDir]:
    """The configuration and the directory of a run. Tasks pass its path: results and parameters stay small text."""
    run = RunDir(Path(run_dir))
    return run.config(), run


def run_stage(stage: Stage, run_dir: str) -> State[StageResult]:
    """Call a stage's plain function and end the task in a state that says what it did."""
    return finished(stage(*opened(run_dir)))


def produce(stage: Stage, run_dir: str) -> State[StageResult]:
    """``run_stage`` of a stage that produces files, which a retry is to find as they are now."""
    config, run = opened(run_dir)
    result = stage(config, run)
    record_outputs(result["stage"], config, run)
    return finished(result)


def finished(result: StageResult) -> State[StageResult]:
    """Completed, Reused or Skipped, with the detail as message: what the graph and `make run` show."""
    name = {"done": "Completed", "reused": "Reused", "skipped": "Skipped"}[result["status"]]
    get_run_logger().info("%s: %s, %s", result["stage"], result["status"], result["detail"])
    return Completed(name=name, message=result["detail"], data=result)
