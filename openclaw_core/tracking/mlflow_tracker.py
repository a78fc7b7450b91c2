"""MLflow. Offline, or without a server: a database below the run's tracking/, for `mlflow server`."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mlflow import MlflowClient  # pyright: ignore[reportMissingImports]  # an extra
from mlflow.entities import Metric, Param  # pyright: ignore[reportMissingImports]  # an extra

from openclaw_core.config.tracking import TrackingConfig

TAG = "openclaw.run_id"
_PARAMS_AT_ONCE, _LONGEST = 100, 500
"""What a server takes in one request; characters of a value."""


class MLflow:
    """The run in an experiment called like the project, found again by a tag."""

    def __init__(self, config: TrackingConfig, run_id: str, parameters: Mapping[str, Any], directory: Path) -> None:
        uri = config.mlflow_uri or f"sqlite:///{(directory / 'mlflow.db').absolute()}"
        self._client = MlflowClient(tracking_uri=uri)
        known = self._client.get_experiment_by_name(config.project)
        experiment = known.experiment_id if known is not None else self._client.create_experiment(config.project)
        runs = self._client.search_runs([experiment], f"tags.`{TAG}` = '{run_id}'", max_results=1)
        if runs:
            self._id = runs[0].info.run_id
            self._client.update_run(self._id, status="RUNNING")
            return
        self._id = self._client.create_run(experiment, tags={TAG: run_id}, run_name=run_id).info.run_id
        params = [Param(name, str(value)[:_LONGEST]) for name, value in parameters.items()]
        for first in range(0, len(params), _PARAMS_AT_ONCE):
            self._client.log_batch(self._id, params=params[first : first + _PARAMS_AT_ONCE])

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """See Tracker."""
        now = int(1000 * time.time())
        self._client.log_batch(self._id, metrics=[Metric(name, value, now, step) for name, value in metrics.items()])

    def close(self) -> None:
        """See Tracker."""
        self._client.set_terminated(self._id)
