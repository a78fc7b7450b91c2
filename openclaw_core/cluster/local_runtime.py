"""A run on this machine: Ray's head and the feeder are processes that outlive whoever started them."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from openclaw_core.cluster import ray_head
from openclaw_core.cluster.job import keep_driver_logs
from openclaw_core.cluster.processes import OwnedProcess, Processes
from openclaw_core.cluster.runtime import FEEDER, FeederState
from openclaw_core.config.schema import RunConfig
from openclaw_core.rundir import RunDir

TAIL_LINES = 15


class LocalRuntime:
    """See Runtime."""

    look_every_s = 1.0

    def __init__(self, config: RunConfig, run: RunDir) -> None:
        self._config, self._run = config, run
        self._processes = Processes(run.processes)

    def __enter__(self) -> LocalRuntime:
        return self

    def __exit__(self, *_error: object) -> None:
        """Nothing is held."""

    def launch(self, *, unchanged: bool = False) -> tuple[bool, str]:
        """See Runtime."""
        if not self.ray_alive():
            self.keep_logs()  # of a head that has died: the new one starts with an empty directory
        reused = ray_head.start_head(self._config, self._run)
        where = f"port {self._config.ports.ray_gcs}, dashboard {ray_head.dashboard_url(self._config)}"
        return reused, f"Ray head on {where}"

    def ray_alive(self) -> bool:
        """See Runtime."""
        return ray_head.find_head(self._run) is not None

    def service_command(self) -> Sequence[str]:
        """See Runtime."""
        return (sys.executable, "-m", "openclaw_core.cli", "serve", "--run-dir", str(self._run.path))

    def keep_logs(self) -> None:
        """See Runtime."""
        keep_driver_logs(self._run)

    def start_feeder(self) -> FeederState:
        """See Runtime."""
        command = [sys.executable, "-m", "openclaw_core.cli", "feed", "--run-dir", str(self._run.path)]
        process = self._processes.find(FEEDER)
        process = process or self._processes.start(FEEDER, command, log_file=self._run.logs / f"{FEEDER}.log")
        return _state(process)

    def feeder(self) -> FeederState | None:
        """See Runtime."""
        process = self._processes.recorded(FEEDER)
        return None if process is None else _state(process)

    def feeder_finished(self) -> bool:
        """See Runtime. Its exit code can be had once, and by its parent only."""
        process = self._processes.recorded(FEEDER)
        return process is not None and process.wait(0) == 0

    def stop_feeder(self) -> None:
        """See Runtime."""
        self._processes.stop(FEEDER, grace_s=15)

    def stop(self) -> str:
        """See Runtime."""
        ray_head.stop_head(self._run)
        return "Ray is stopped"


def _state(process: OwnedProcess) -> FeederState:
    alive = process.handle() is not None
    return FeederState(alive, f"pid {process.pid}", process.log, "" if alive else process.log_tail(TAIL_LINES))
