"""One SGLang server that the run owns: a process in a session of its own, recorded by pid and start time, ended by those."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import httpx
import structlog

from openclaw_core.cluster.errors import ClusterError
from openclaw_core.cluster.processes import OwnedProcess, Processes
from openclaw_core.engines.protocol import EngineError
from openclaw_core.engines.sglang.command import ServerCommand

log = structlog.get_logger(__name__)

_POLL_S = 1.0
_LOG_LINES = 15


class SGLangServer:
    """``name``: of its record. ``directory``: where the run keeps records of its processes.

    ``grace_s``: between SIGTERM and SIGKILL.
    """

    def __init__(
        self, name: str, command: ServerCommand, *, url: str, directory: Path, log_file: Path, grace_s: float = 30
    ) -> None:
        self.name = name
        self.url = url
        self._command = command
        self._processes = Processes(directory)
        self._log_file = log_file
        self._grace_s = grace_s

    def start(self) -> OwnedProcess:
        """Start it; it outlives this process. Raises EngineError: no such program, or it is running already."""
        arguments, environment = self._command.arguments, self._command.environment
        try:
            return self._processes.start(self.name, arguments, log_file=self._log_file, env=environment)
        except ClusterError as error:
            raise EngineError(str(error)) from error

    @property
    def process(self) -> OwnedProcess | None:
        """The recorded process, if it is alive."""
        return self._processes.find(self.name)

    async def wait_ready(self, deadline_s: float) -> None:
        """Poll its health until it serves.

        Raises EngineError: its process ended, or it does not serve within ``deadline_s``; with the end of its log.
        """
        deadline = time.monotonic() + deadline_s
        async with httpx.AsyncClient(trust_env=False) as client:
            while True:
                if self.process is None:
                    raise EngineError(
                        f"SGLang server {self.name} has ended before it served; its log ends:\n{self._log_tail()}"
                    )
                answer = await self._health(client, min(30.0, max(1.0, deadline - time.monotonic())))
                if answer is None:
                    log.info("sglang_ready", name=self.name, url=self.url)
                    return
                if time.monotonic() > deadline:
                    raise EngineError(
                        f"SGLang server {self.name} does not serve {deadline_s:g} s after its start (last answer: {answer}); "
                        f"its log ends:\n{self._log_tail()}"
                    )
                await asyncio.sleep(_POLL_S)

    async def stop(self) -> bool:
        """SIGTERM, after the grace SIGKILL, to its recorded process and its session. False where it was not running.

        Raises EngineError where something of it is left.
        """
        try:
            return await asyncio.to_thread(self._processes.stop, self.name, self._grace_s)
        except ClusterError as error:
            raise EngineError(str(error)) from error

    async def _health(self, client: httpx.AsyncClient, timeout_s: float) -> str | None:
        """/health runs one token and answers after a second at the earliest, 503 while it starts."""
        try:
            response = await client.get(f"{self.url}/health", timeout=timeout_s)
        except httpx.TimeoutException:
            return f"no answer within {timeout_s:.0f} s"
        except httpx.HTTPError as error:
            return str(error) or type(error).__name__
        return None if response.status_code == httpx.codes.OK else f"status {response.status_code}"

    def _log_tail(self) -> str:
        record = self._processes.recorded(self.name)
        return record.log_tail(_LOG_LINES) if record is not None else "(no log)"
