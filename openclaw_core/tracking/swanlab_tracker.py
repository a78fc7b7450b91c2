"""SwanLab. Offline: a folder a process below the run's tracking/, for `swanlab sync`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import swanlab  # pyright: ignore[reportMissingImports]  # an extra

from openclaw_core.config.tracking import TrackingConfig

_NOTHING_ELSE: dict[str, dict[str, Any]] = {
    "probe": {"hardware": False, "runtime": False, "requirements": False, "git": False, "monitor": False},
    "terminal": {"proxy_type": "none"},
}
"""No description of this machine, its load, its packages or its output."""


class SwanLab:
    """The run's metrics. Only its server can go on with a run: offline, each process that drives the run has its own."""

    def __init__(self, config: TrackingConfig, run_id: str, parameters: Mapping[str, Any], directory: Path) -> None:
        folder = directory / "swanlab"
        folder.mkdir(parents=True, exist_ok=True)
        resumed: dict[str, Any] = {"id": run_id, "resume": "allow"} if config.mode == "online" else {}
        self._run = swanlab.init(
            project=config.project,
            name=run_id,
            mode=config.mode,
            log_dir=str(folder),
            config=dict(parameters),
            settings=swanlab.Settings.model_validate({"interactive": False, **_NOTHING_ELSE}),
            **resumed,
        )

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """See Tracker."""
        self._run.log(dict(metrics), step=step)

    def close(self) -> None:
        """See Tracker."""
        self._run.finish()
