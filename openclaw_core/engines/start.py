"""The run's engines: what the configuration says becomes processes that the router starts, ends and starts again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from openclaw_core.cluster.pinning import on_host
from openclaw_core.config.schema import RunConfig
from openclaw_core.engines.protocol import EngineError, OwnedEngine
from openclaw_core.engines.ray_engine import RayEngine
from openclaw_core.engines.router import StartEngine
from openclaw_core.engines.sglang.client import SGLangEngine
from openclaw_core.planning.placement import place_ranks
from openclaw_core.rundir import RunDir


def engine_starts(config: RunConfig, run: RunDir, hf_dir: Path) -> list[tuple[str, StartEngine]]:
    """Name and start of each of ``engine.count`` engines with the model in ``hf_dir``."""
    hosts = place_ranks(config).engine.hosts

    def local(index: int) -> StartEngine:
        async def start() -> OwnedEngine:
            here = on_host(config.cluster, hosts[index])
            engine = RayEngine.start(config, hf_dir, name=f"engine-{index}", resources=here)
            await engine.ready()
            return engine

        return start

    def sglang(index: int) -> StartEngine:
        return lambda: SGLangEngine.start(config, hf_dir, index=index, processes=run.processes, logs=run.logs)

    if config.engine.backend == "sglang":
        _refuse_elsewhere(config, hosts)
    start: Callable[[int], StartEngine] = {"local": local, "sglang": sglang}[config.engine.backend]
    return [(f"engine-{index}", start(index)) for index in range(config.engine.count)]


def _refuse_elsewhere(config: RunConfig, hosts: Sequence[str]) -> None:
    head = config.cluster.head.name
    elsewhere = [host for host in dict.fromkeys(hosts) if config.cluster.containers and host != head]
    if elsewhere:
        raise EngineError(
            f"engines on {', '.join(elsewhere)}: in this version SGLang is started on the head {head} only; give that host the "
            "role rollout, and NPUs for the engines"
        )
