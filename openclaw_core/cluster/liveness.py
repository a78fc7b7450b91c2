"""Whether the hosts of a run are there. Ray itself notices a lost one after half a minute or more, and says so to nobody."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Any, cast

import ray
import structlog
from ray.exceptions import RayError

from openclaw_core.cluster.pinning import on_host
from openclaw_core.config.cluster import ClusterConfig

log = structlog.get_logger(__name__)

PERIODS = 5
"""Pings within cluster.liveness_s."""
STARTING_S = 60.0
"""So much longer may a host's first answer take: its actor is a process that has to start."""


class _Answering:
    """The actor on each host."""

    def ping(self) -> None:
        """Answer."""


class Liveness:
    """Asks every host again and again. To be made in a running event loop, with Ray initialised."""

    def __init__(self, cluster: ClusterConfig) -> None:
        self._limit_s = cluster.liveness_s
        actor = cast(Any, ray.remote(_Answering))
        self._actors = {
            host.name: actor.options(num_cpus=0, max_restarts=-1, resources=on_host(cluster, host.name)).remote()
            for host in cluster.hosts
        }
        self._seen = dict.fromkeys(self._actors, time.monotonic() + STARTING_S)
        self._told: set[str] = set()
        self._tasks = [asyncio.create_task(self._watch(name), name=f"liveness-{name}") for name in self._actors]

    @property
    def alert(self) -> str | None:
        """Which hosts have been silent for longer than cluster.liveness_s; None while all are there."""
        silent = [f"{name} for {self._silence(name):.0f} s" for name in self._actors if self._silence(name) > self._limit_s]
        return f"host silent: {', '.join(silent)}; what needs it waits until it is back" if silent else None

    async def stop(self) -> None:
        """End the pings and their actors."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for actor in self._actors.values():
            cast(Any, ray).kill(actor)

    def _silence(self, name: str) -> float:
        return time.monotonic() - self._seen[name]

    async def _watch(self, name: str) -> None:
        period = self._limit_s / PERIODS
        while True:
            # A call in flight when a host goes away hangs for a minute; each has a deadline of its own.
            with contextlib.suppress(TimeoutError, RayError):
                async with asyncio.timeout(period):
                    await asyncio.wrap_future(self._actors[name].ping.remote().future())
                self._seen[name] = time.monotonic()
            self._tell(name)
            await asyncio.sleep(period)

    def _tell(self, name: str) -> None:
        silent = self._silence(name) > self._limit_s
        if silent and name not in self._told:
            self._told.add(name)
            log.error("host_silent", host=name, seconds=round(self._silence(name)))
        elif not silent and name in self._told:
            self._told.discard(name)
            log.info("host_back", host=name)
