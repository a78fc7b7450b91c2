"""How stage tasks are cached, and how each of them calls its plain function."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypedDict

from prefect.cache_policies import INPUTS, NO_CACHE, RUN_ID, CacheKeyFnPolicy, CachePolicy
from prefect.client.schemas.objects import State
from prefect.context import TaskRunContext
from prefect.logging import get_run_logger
from prefect.states import Completed

from openclaw_core.config import RunConfig
from openclaw_core.rundir import RunDir
from openclaw_core.stages import Stage, StageResult


class Caching(TypedDict):
    """Options of ``@task``."""

    cache_policy: CachePolicy
    persist_result: bool


def _task_name(context: TaskRunContext, parameters: dict[str, Any]) -> str:
    return context.task.name


# The task's name belongs to the key: stages have the same inputs, and one would be handed the result of another.
PRODUCES_FILES: Caching = {"cache_policy": CacheKeyFnPolicy(cache_key_fn=_task_name) + INPUTS + RUN_ID, "persist_result": True}
"""Cached within one flow run: its retry skips them. Not keyed by the source: mending a bug must not undo finished work."""

MUST_BE_TRUE_NOW: Caching = {"cache_policy": NO_CACHE, "persist_result": False}
"""Runs in every attempt. ``persist_result`` is said explicitly, since None inherits it from the flow."""


def opened(run_dir: str) -> tuple[RunConfig, RunDir]:
    """The configuration and the directory of a run. Tasks pass its path: results and parameters stay small text."""
    run = RunDir(Path(run_dir))
    return run.config(), run


def run_stage(stage: Stage, run_dir: str) -> State[StageResult]:
    """Call a stage's plain function and end the task in a state that says what it did."""
    return finished(stage(*opened(run_dir)))


def finished(result: StageResult) -> State[StageResult]:
    """Completed, Reused or Skipped, with the detail as message: what the graph and `make run` show."""
    name = {"done": "Completed", "reused": "Reused", "skipped": "Skipped"}[result["status"]]
    get_run_logger().info("%s: %s, %s", result["stage"], result["status"], result["detail"])
    return Completed(name=name, message=result["detail"], data=result)
