"""One PartStore on every host of the trainer, so that a restart finds a checkpoint's parts wherever they were written."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, cast

import ray
import structlog
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from openclaw_core.cluster.pinning import on_host
from openclaw_core.config.schema import RunConfig
from openclaw_core.planning.placement import place_ranks
from openclaw_core.trainer.errors import TrainerError
from openclaw_core.trainer.parts import PartStore, host_name, verify_on
from openclaw_core.trainer.retention import Chosen, newest_whole, withdraw

log = structlog.get_logger(__name__)


class _HostStore(PartStore):
    """Knows the name of its host too."""

    def __init__(self, root: str, config_json: str) -> None:
        super().__init__(root)
        self._config = RunConfig.model_validate_json(config_json)

    def host(self) -> str:
        return host_name(self._config)


def nodes_with_parts(config: RunConfig, nodes: Iterable[Mapping[str, Any]]) -> list[str]:
    """Ids of those of ``ray.nodes()`` that are alive and on which ranks of the trainer write."""
    pins = {pin for host in place_ranks(config).trainer.hosts for pin in on_host(config.cluster, host)}
    alive = [node for node in nodes if node["Alive"]]
    return [node["NodeID"] for node in alive if not pins or pins & node["Resources"].keys()]


class PartStores:
    """The stores of a run's checkpoints below ``root``, by host."""

    def __init__(self, handles: Mapping[str, Any], root: Path, deadline_s: float) -> None:
        self.handles, self._root, self._deadline_s = handles, root, deadline_s

    @classmethod
    async def start(cls, config: RunConfig, root: Path) -> PartStores:
        """An actor on every host of the trainer that is alive: nobody else writes parts. Raises TrainerError."""
        actor = cast(Any, ray.remote(num_cpus=0)(_HostStore))
        nodes = nodes_with_parts(config, ray.nodes())
        stores = [
            actor.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)).remote(
                str(root), config.model_dump_json()
            )
            for node in nodes
        ]
        try:
            async with asyncio.timeout(config.train.deadline_s):
                hosts = await asyncio.gather(*(asyncio.wrap_future(store.host.remote().future()) for store in stores))
        except (TimeoutError, RayError) as error:
            for store in stores:
                ray.kill(store)
            why = str(error) or f"no answer within train.deadline_s={config.train.deadline_s:g}"
            raise TrainerError(f"the part stores of {len(nodes)} hosts could not be started: {why}") from error
        return cls(dict(zip(hosts, stores, strict=True)), root, config.train.deadline_s)

    async def newest_whole(self) -> Chosen | None:
        """The newest checkpoint whose parts are all in place, on whatever hosts; None where there are none.

        Newer ones that are damaged are named in the log and withdrawn: their steps will be made again.

        Raises CheckpointError where there are checkpoints and none is whole.
        """
        chosen = await asyncio.to_thread(newest_whole, self._root, verify_on(self.handles, self._deadline_s))
        if chosen and chosen.damaged:
            for directory, findings in chosen.damaged.items():
                log.error("checkpoint_damaged", path=str(directory), findings=findings, used=str(chosen.directory))
            await asyncio.to_thread(withdraw, chosen.damaged)
        return chosen

    async def retain(self, names: Iterable[str]) -> None:
        """Forget all checkpoints but these, on every host; a host that does not answer is left to the next time."""
        kept = list(names)

        async def retained(store: Any) -> None:
            async with asyncio.timeout(self._deadline_s):
                await asyncio.wrap_future(store.retain.remote(kept).future())

        answers = await asyncio.gather(*map(retained, self.handles.values()), return_exceptions=True)
        for host, answer in zip(self.handles, answers, strict=True):
            if isinstance(answer, BaseException):
                log.warning("old_checkpoints_not_removed", host=host, reason=str(answer))

    def stop(self) -> None:
        """End the actors."""
        for store in self.handles.values():
            ray.kill(store)
