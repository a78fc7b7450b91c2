"""Trackio: a database below the run's tracking/, for `trackio show`. It is on this machine in either mode."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from openclaw_core.config.tracking import TrackingConfig


class Trackio:
    """The run's metrics, and nothing of this machine."""

    def __init__(self, config: TrackingConfig, run_id: str, parameters: Mapping[str, Any], directory: Path) -> None:
        # It is told where its files go by this variable alone, at its import; the others would send all to a server.
        os.environ["TRACKIO_DIR"] = str(directory.absolute() / "trackio")
        for name in ("TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL", "TRACKIO_WEBHOOK_URL"):
            os.environ.pop(name, None)
        import trackio  # pyright: ignore[reportMissingImports]  # an extra

        self._run = trackio.init(
            project=config.project,
            name=run_id,
            resume="allow",
            config=dict(parameters),
            embed=False,
            auto_log_gpu=False,
            auto_log_cpu=False,
        )

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """See Tracker."""
        self._run.log(dict(metrics), step=step)

    def close(self) -> None:
        """See Tracker."""
        self._run.finish()
