"""What a run stands on while it trains, here or on hosts of its own: Ray, the place of its service, the feeder."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from openclaw_core.config.schema import RunConfig
from openclaw_core.rundir import RunDir

FEEDER = "feeder"


@dataclass(frozen=True, slots=True)
class FeederState:
    """How the run's feeder is. ``where``: pid or container, and its log, for people."""

    alive: bool
    where: str
    log: str
    tail: str
    """Its last lines, where it is not alive."""


class Runtime(Protocol):
    """Every method may be called again at any time. Raises ClusterError, with what to do."""

    look_every_s: float
    """Between two looks at the feeder, by whoever watches it."""

    def launch(self, *, unchanged: bool = False) -> tuple[bool, str]:
        """Have Ray with everything that the run needs. Whether it was there already, and where it is.

        ``unchanged``: with the code that the run has, whatever has become of this project's since.
        """
        ...

    def ray_alive(self) -> bool:
        """Whether the run's Ray is there."""
        ...

    def service_command(self) -> Sequence[str]:
        """What the job of the training service runs, where it runs."""
        ...

    def keep_logs(self) -> None:
        """Bring what the service and Ray wrote so far into the run's logs, and the metrics of its steps."""
        ...

    def start_feeder(self) -> FeederState:
        """Start ``openclaw-rl feed``, or take the one that is alive."""
        ...

    def feeder(self) -> FeederState | None:
        """None where the run has no feeder of its own: it is fed by people, or has been told to stop."""
        ...

    def feeder_finished(self) -> bool:
        """Whether a feeder that is not alive ended well, since the run was at its end. To be asked once, by who started it."""
        ...

    def stop_feeder(self) -> None:
        """End it, if it is running."""
        ...

    def stop(self) -> str:
        """End Ray and everything on it; says what was there."""
        ...


def runtime_of(config: RunConfig, run: RunDir) -> AbstractContextManager[Runtime]:
    """What this run stands on; connections end with the block."""
    if config.cluster.containers:
        from openclaw_core.cluster.hosts_runtime import HostsRuntime  # brings in docker

        return HostsRuntime(config, run)
    from openclaw_core.cluster.local_runtime import LocalRuntime

    return LocalRuntime(config, run)
