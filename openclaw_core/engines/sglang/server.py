"""One SGLang server that the run owns: a process in a session of its own, recorded by pid and start time, ended by those."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import httpx
import structlog

from openclaw_core.cluster.errors import ClusterError
from openclaw_core.cluster.places import Place, Start
from openclaw_core.engines.protocol import EngineError
from openclaw_core.engines.sglang.command import ServerCommand, ServerKey

log = structlog.get_logger(__name__)

_POLL_S = 1.0
_LOG_LINES = 15


class SGLangServer:
    """``name``: of its record. ``place``: where it is started. ``grace_s``: between SIGTERM and SIGKILL."""

    def __init__(
        self,
        name: str,
        command: ServerCommand,
        *,
        url: str,
        place: Place,
        log_file: Path,
        grace_s: float = 30,
        key: ServerKey | None = None,
    ) -> None:
        self.name = name
        self.url = url
        self._place = place
        self._grace_s = grace_s
        self._key = key
        private = (Path(key.file), key.text) if key is not None else None
        self._start = Start(command.arguments, log_file, command.environment, private)

    async def start(self) -> None:
        """Start it. Raises EngineError: no such program, or it is running already."""
        try:
            await self._place.start(self.name, self._start)
        except ClusterError as error:
            raise EngineError(f"SGLang server {self.name}: {error}") from error

    async def alive(self) -> bool:
        """Whether its process runs. Raises EngineError where that cannot be told."""
        try:
            return await self._place.alive(self.name)
        except ClusterError as error:
            raise EngineError(f"SGLang server {self.name}: {error}") from error

    async def wait_ready(self, deadline_s: float) -> None:
        """Poll its health until it serves.

        Raises EngineError: its process ended, or it does not serve within ``deadline_s``; with the end of its log.
        """
        deadline = time.monotonic() + deadline_s
        async with httpx.AsyncClient(trust_env=False) as client:
            while True:
                if not await self.alive():
                    raise EngineError(
                        f"SGLang server {self.name} has ended before it served; its log ends:\n{await self._log_tail()}"
                    )
                answer = await self._health(client, min(30.0, max(1.0, deadline - time.monotonic())))
                if answer is None:
                    log.info("sglang_ready", name=self.name, url=self.url)
                    return
                if time.monotonic() > deadline:
                    raise EngineError(
                        f"SGLang server {self.name} does not serve {deadline_s:g} s after its start (last answer: {answer}); "
                        f"its log ends:\n{await self._log_tail()}"
                    )
                await asyncio.sleep(_POLL_S)

    async def stop(self) -> bool:
        """SIGTERM, after the grace SIGKILL, to its recorded process and its session. False where it was not running.

        Raises EngineError where something of it is left, or its host cannot be asked.
        """
        try:
            return await self._place.stop(self.name, self._grace_s)
        except ClusterError as error:
            raise EngineError(f"SGLang server {self.name}: {error}") from error

    async def _health(self, client: httpx.AsyncClient, timeout_s: float) -> str | None:
        """/health runs one token and answers after a second at the earliest, 503 while it starts."""
        try:
            response = await client.get(f"{self.url}/health", timeout=timeout_s)
        except httpx.TimeoutException:
            return f"no answer within {timeout_s:.0f} s"
        except httpx.HTTPError as error:
            return str(error) or type(error).__name__
        return None if response.status_code == httpx.codes.OK else f"status {response.status_code}"

    async def _log_tail(self) -> str:
        """SGLang writes all of its settings into its log, the key as well."""
        try:
            tail = await self._place.log_tail(self.name, _LOG_LINES)
        except ClusterError as error:
            return f"({error})"
        return tail.replace(self._key.value, "****") if self._key is not None else tail
