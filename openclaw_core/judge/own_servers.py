"""The judge's SGLang servers on the hosts with the role prm: started beside the service, and again where one has ended."""

from __future__ import annotations

import asyncio

import structlog

from openclaw_core.cluster.pinning import on_prm_host
from openclaw_core.cluster.places import OnHost
from openclaw_core.config.cluster import HostConfig
from openclaw_core.config.schema import RunConfig
from openclaw_core.engines.protocol import EngineError
from openclaw_core.engines.sglang.command import judge_command
from openclaw_core.engines.sglang.server import SGLangServer
from openclaw_core.engines.sglang.where import judge_at, judge_name
from openclaw_core.planning.placement import place_ranks
from openclaw_core.rundir import RunDir
from openclaw_core.weights.layout import judge_directory

log = structlog.get_logger(__name__)

LOOK_S = 5.0
"""Between two looks at a server's process."""
LONGEST_PAUSE_S = 60.0
"""Before it is started once more."""


class JudgeServers:
    """To be made in a running event loop, with Ray initialised. Turns wait for a verdict while none serves."""

    def __init__(self, config: RunConfig, run: RunDir) -> None:
        self._deadline_s = config.judge.server.start_deadline_s
        self._servers = [judge_server(config, run, host) for host in config.cluster.with_role("prm")]
        self._not_there = {server.name: "it is starting" for server in self._servers}
        self._tasks = [asyncio.create_task(self._keep(server), name=server.name) for server in self._servers]

    @property
    def alert(self) -> str | None:
        """Which servers do not serve, and why; None while all do."""
        return "; ".join(f"{name}: {why}" for name, why in self._not_there.items()) or None

    async def stop(self) -> None:
        """End them. One whose host is away ends with its container."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for server, left in zip(self._servers, await self._end_all(), strict=True):
            if isinstance(left, BaseException):
                log.error("judge_server_not_ended", name=server.name, reason=str(left))

    async def _end_all(self) -> list[bool | BaseException]:
        return await asyncio.gather(*(server.stop() for server in self._servers), return_exceptions=True)

    async def _keep(self, server: SGLangServer) -> None:
        pause_s = 1.0
        while True:
            try:
                await server.stop()  # what an earlier life of the service or of the host has left
                await server.start()
                await server.wait_ready(self._deadline_s)
                del self._not_there[server.name]
                pause_s = 1.0
                await _until_ended(server)
                reason = "it has ended and is started again"
            except EngineError as error:
                reason = str(error)
            self._not_there[server.name] = reason
            log.error("judge_server_out", name=server.name, reason=reason, next_in_s=pause_s)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)


def judge_server(config: RunConfig, run: RunDir, host: HostConfig) -> SGLangServer:
    """The one on that host."""
    at, name = judge_at(config, run.path, host, run.secrets().server_key), judge_name(host)
    server = config.judge.server
    return SGLangServer(
        name,
        judge_command(config, judge_directory(config), at=at),
        url=at.url(server.port),
        place=OnHost(host.name, run.processes, on_prm_host(config.cluster, host.name, place_ranks(config))),
        log_file=run.logs / f"{name}.log",
        grace_s=server.stop_grace_s,
        key=at.key,
    )


async def _until_ended(server: SGLangServer) -> None:
    """A host that does not answer may only be cut off: its server is as good as before when it is back."""
    while True:
        await asyncio.sleep(LOOK_S)
        try:
            if not await server.alive():
                return
        except EngineError as error:
            log.warning("judge_server_not_seen", name=server.name, reason=str(error))
