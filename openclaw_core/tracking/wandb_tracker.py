"""Weights & Biases. Offline: a folder a process below the run's tracking/, for `wandb sync`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import wandb  # pyright: ignore[reportMissingImports]  # an extra

from openclaw_core.config.tracking import TrackingConfig


class Wandb:
    """The run's metrics, and nothing of this machine: no code, no output, no load."""

    def __init__(self, config: TrackingConfig, run_id: str, parameters: Mapping[str, Any], directory: Path) -> None:
        self._run = wandb.init(
            project=config.project,
            id=run_id,
            name=run_id,
            resume="allow",
            config=dict(parameters),
            dir=directory,
            mode=config.mode,
            settings=wandb.Settings(
                silent=True,
                console="off",
                disable_git=True,
                disable_code=True,
                x_disable_meta=True,
                x_disable_stats=True,
                x_save_requirements=False,
            ),
        )

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """See Tracker."""
        self._run.log(dict(metrics), step=step, commit=True)

    def close(self) -> None:
        """See Tracker."""
        self._run.finish()
