"""Where a run starts its servers: beside the service, or on another host of the run. Each place has records of its own."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, cast

import ray
from ray.exceptions import RayError

from openclaw_core.cluster.errors import ClusterError
from openclaw_core.cluster.processes import Processes
from openclaw_core.rundir import write_whole

CALL_S = 30.0
"""Deadline of one call of another host; Ray's own are minutes."""


@dataclass(frozen=True, slots=True)
class Start:
    """A process to be started."""

    command: Sequence[str]
    log_file: Path
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    """Laid over what the place has."""
    private_file: tuple[Path, str] | None = field(default=None, repr=False)
    """Path and text of a file that its owner alone can read, written before."""


class Place(Protocol):
    """Processes by name: started in a session of their own, ended by recorded pid. Raises ClusterError (every method)."""

    async def start(self, name: str, what: Start) -> None:
        """Start it. One of that name must not be running."""
        ...

    async def alive(self, name: str) -> bool:
        """Whether it runs."""
        ...

    async def stop(self, name: str, grace_s: float) -> bool:
        """End it: SIGTERM, after the grace SIGKILL, also to its children. False where it was not running."""
        ...

    async def log_tail(self, name: str, lines: int) -> str:
        """The last that it wrote."""
        ...


class _Starter:
    """What a place does, in the process that is there."""

    def __init__(self, directory: Path) -> None:
        self._processes = Processes(directory)

    def start(self, name: str, what: Start) -> None:
        if what.private_file is not None:
            path, text = what.private_file
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, text, mode=0o600)
        self._processes.start(name, what.command, log_file=what.log_file, env=what.environment)

    def alive(self, name: str) -> bool:
        return self._processes.find(name) is not None

    def stop(self, name: str, grace_s: float) -> bool:
        return self._processes.stop(name, grace_s)

    def log_tail(self, name: str, lines: int) -> str:
        record = self._processes.recorded(name)
        return record.log_tail(lines) if record is not None else "(no log)"


class _StarterThere(_Starter):
    """The actor on another host."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        # Ray's, for an actor that asks for no core; the servers would inherit it.
        os.environ.pop("OMP_NUM_THREADS", None)


class Here:
    """The machine or container of this process. ``directory``: of the records."""

    def __init__(self, directory: Path) -> None:
        self._starter = _Starter(directory)

    async def start(self, name: str, what: Start) -> None:
        """See Place."""
        await asyncio.to_thread(self._starter.start, name, what)

    async def alive(self, name: str) -> bool:
        """See Place."""
        return await asyncio.to_thread(self._starter.alive, name)

    async def stop(self, name: str, grace_s: float) -> bool:
        """See Place."""
        return await asyncio.to_thread(self._starter.stop, name, grace_s)

    async def log_tail(self, name: str, lines: int) -> str:
        """See Place."""
        return await asyncio.to_thread(self._starter.log_tail, name, lines)


class OnHost:
    """The container of Ray on ``host``, through an actor that comes back after the host was away.

    ``directory``: of the records, there. ``resources``: which pin the actor (pinning.py). What is started ends with its
    container at the latest.
    """

    def __init__(self, host: str, directory: Path, resources: Mapping[str, float]) -> None:
        self._host = host
        actor = cast(Any, ray.remote(_StarterThere))
        self._actor = actor.options(num_cpus=0, max_restarts=-1, resources=dict(resources)).remote(directory)

    async def start(self, name: str, what: Start) -> None:
        """See Place."""
        await self._call(CALL_S, "start", name, what)

    async def alive(self, name: str) -> bool:
        """See Place."""
        return await self._call(CALL_S, "alive", name)

    async def stop(self, name: str, grace_s: float) -> bool:
        """See Place."""
        return await self._call(grace_s + CALL_S, "stop", name, grace_s)

    async def log_tail(self, name: str, lines: int) -> str:
        """See Place."""
        return await self._call(CALL_S, "log_tail", name, lines)

    async def _call(self, deadline_s: float, method: str, *arguments: Any) -> Any:
        """A call that is in flight when the host goes away hangs in Ray."""
        try:
            async with asyncio.timeout(deadline_s):
                return await asyncio.wrap_future(getattr(self._actor, method).remote(*arguments).future())
        except TimeoutError:
            raise ClusterError(f"host {self._host} has not answered within {deadline_s:g} s") from None
        except RayError as error:
            cause = getattr(error, "cause", None)
            if isinstance(cause, ClusterError):
                raise cause from None
            raise ClusterError(f"host {self._host} cannot be asked: {error}") from error
