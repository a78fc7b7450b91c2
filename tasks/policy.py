"""How stage tasks are cached, and how each of them calls its plain function."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypedDict

from prefect.cache_policies import INPUTS, NO_CACHE, RUN_ID, CachePolicy
from prefect.logging import get_run_logger

from openclaw_core.config import RunConfig
from openclaw_core.rundir import RunDir
from openclaw_core.stages import Stage, StageResult


class Caching(TypedDict):
    """Options of ``@task``."""

    cache_policy: CachePolicy
    persist_result: bool


PRODUCES_FILES: Caching = {"cache_policy": INPUTS + RUN_ID, "persist_result": True}
"""Cached within one flow run: a retry of the run skips it. Not by the task's source: a fixed bug must not undo finished work."""

MUST_BE_TRUE_NOW: Caching = {"cache_policy": NO_CACHE, "persist_result": False}
"""Runs in every attempt. ``persist_result`` is said explicitly, since None inherits it from the flow."""


def opened(run_dir: str) -> tuple[RunConfig, RunDir]:
    """The configuration and the directory of a run. Tasks pass its path: results and parameters stay small text."""
    run = RunDir(Path(run_dir))
    return run.config(), run


def run_stage(stage: Stage, run_dir: str) -> StageResult:
    """Call a stage's plain function and log what it says."""
    result = stage(*opened(run_dir))
    log_result(result)
    return result


def log_result(result: StageResult) -> None:
    """One line on the run's page."""
    get_run_logger().info("%s: %s, %s", result["stage"], result["status"], result["detail"])


def describe(value: Any) -> str:
    """A metric for a table: four significant digits, and a dash where there is none."""
    if value is None:
        return "–"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
