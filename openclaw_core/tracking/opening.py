"""Name → tracker."""

from __future__ import annotations

import os
from collections.abc import Callable

from openclaw_core.config import RunConfig
from openclaw_core.report.parameters import parameters
from openclaw_core.rundir import RunDir
from openclaw_core.tracking.packages import TENSORBOARD
from openclaw_core.tracking.protocol import Tracker

_NOTHING_TO_THEIR_MAKERS = {"WANDB_ERROR_REPORTING": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}
"""Read by the packages at their import: else they report how they are used, offline too."""


def open_tracker(name: str, config: RunConfig, run: RunDir) -> Tracker:
    """Begin, or go on with, the run in a tracker. Raises whatever its package does."""
    os.environ.update(_NOTHING_TO_THEIR_MAKERS)
    makers: dict[str, Callable[[RunConfig, RunDir], Tracker]] = {
        TENSORBOARD: _tensorboard,
        "wandb": _wandb,
        "swanlab": _swanlab,
        "mlflow": _mlflow,
        "trackio": _trackio,
    }
    return makers[name](config, run)


def _tensorboard(config: RunConfig, run: RunDir) -> Tracker:
    from openclaw_core.tracking.tensorboard_tracker import TensorBoard

    return TensorBoard(run.tensorboard)


def _wandb(config: RunConfig, run: RunDir) -> Tracker:
    from openclaw_core.tracking.wandb_tracker import Wandb

    return Wandb(config.tracking, run.run_id, parameters(config), run.tracking)


def _swanlab(config: RunConfig, run: RunDir) -> Tracker:
    from openclaw_core.tracking.swanlab_tracker import SwanLab

    return SwanLab(config.tracking, run.run_id, parameters(config), run.tracking)


def _mlflow(config: RunConfig, run: RunDir) -> Tracker:
    from openclaw_core.tracking.mlflow_tracker import MLflow

    return MLflow(config.tracking, run.run_id, parameters(config), run.tracking)


def _trackio(config: RunConfig, run: RunDir) -> Tracker:
    from openclaw_core.tracking.trackio_tracker import Trackio

    return Trackio(config.tracking, run.run_id, parameters(config), run.tracking)
