"""The run's engines: what the configuration says becomes processes that the router starts, ends and starts again."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

from openclaw_core.cluster.pinning import on_host
from openclaw_core.cluster.places import Here, OnHost, Place
from openclaw_core.config.schema import RunConfig
from openclaw_core.engines.protocol import OwnedEngine
from openclaw_core.engines.ray_engine import RayEngine
from openclaw_core.engines.router import StartEngine
from openclaw_core.engines.sglang.client import SGLangEngine
from openclaw_core.engines.sglang.command import LOOPBACK, ServerAt
from openclaw_core.engines.sglang.where import engine_at
from openclaw_core.planning.placement import place_ranks
from openclaw_core.rundir import RunDir


def engine_starts(config: RunConfig, run: RunDir, hf_dir: Path) -> list[tuple[str, StartEngine]]:
    """Name and start of each of ``engine.count`` engines with the model in ``hf_dir``."""
    role = place_ranks(config).engine

    def local(index: int) -> StartEngine:
        async def start() -> OwnedEngine:
            here = on_host(config.cluster, role.hosts[index])
            engine = RayEngine.start(config, hf_dir, name=f"engine-{index}", resources=here)
            await engine.ready()
            return engine

        return start

    def sglang(index: int) -> StartEngine:
        at = engine_at(config, run.path, index, run.secrets().server_key)
        place = cache(lambda: _place(config, run, role.hosts[index], at))  # one for all its lives, made where Ray is there
        return lambda: SGLangEngine.start(config, hf_dir, index=index, place=place(), at=at, logs=run.logs)

    start: Callable[[int], StartEngine] = {"local": local, "sglang": sglang}[config.engine.backend]
    return [(f"engine-{index}", start(index)) for index in range(config.engine.count)]


def _place(config: RunConfig, run: RunDir, host: str, at: ServerAt) -> Place:
    return Here(run.processes) if at.address == LOOPBACK else OnHost(host, run.processes, on_host(config.cluster, host))
