"""The ranks of a trainer or scorer as their driver sees them: every call has a deadline, and a stuck rank is named."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import ray
import structlog
from ray.exceptions import RayActorError, RayError, RayTaskError

from openclaw_core.cluster.pinning import on_host
from openclaw_core.config.schema import RunConfig
from openclaw_core.trainer import accelerator as accelerators
from openclaw_core.trainer.errors import RankLost, TrainerError
from openclaw_core.trainer.parts import CheckpointError
from openclaw_core.trainer.rank import Rank

log = structlog.get_logger(__name__)

PING_S = 5.0
"""Between two looks at the ranks of a running call."""
PUBLISH_CALLS = 16
"""Engines that a rank serves at a time; more of them wait, and their deadline runs."""


class RankGroup:
    """Ranks that work together. Every rank runs every call, and the answers come back in rank order."""

    def __init__(
        self, name: str, actor_class: type[Rank], config: RunConfig, hf_dir: str, hosts: Sequence[str], threads: int
    ) -> None:
        """``hosts``: of each rank."""
        world_size = len(hosts)
        self.name = name
        self._train = config.train
        self._seen = [("start", time.monotonic())] * world_size
        """What each rank was doing when it last answered, and since when."""
        accelerator = accelerators.detect()
        actor = cast(Any, ray).remote(concurrency_groups={"watch": 1, "publish": PUBLISH_CALLS})(actor_class)
        # Ray knows GPUs by an option of their own; CPU ranks take turns with the engine on the same cores.
        gpus = {"num_gpus": 1} if accelerator.device == "cuda" else {}
        npus = {accelerator.ray_resource: 1} if accelerator.device == "npu" else {}
        environment = accelerator.environment(config.train) | {"OMP_NUM_THREADS": str(threads)}
        options = {"num_cpus": 0, **gpus, "runtime_env": {"env_vars": environment}}
        arguments = config.model_dump_json(), hf_dir
        self.ranks = [
            actor.options(**options, resources=npus | on_host(config.cluster, host)).remote(*arguments, rank, world_size)
            for rank, host in enumerate(hosts)
        ]

    @classmethod
    async def start(
        cls,
        name: str,
        actor_class: type[Rank],
        config: RunConfig,
        hf_dir: Path,
        base_checkpoint: Path,
        *,
        tensor_parallel: int,
        hosts: Sequence[str],
        threads: int,
    ) -> RankGroup:
        """Ranks that have joined and hold the start model; consecutive ranks share one copy of it. Raises TrainerError.

        ``hosts``: of each copy.
        """
        hf = str(hf_dir.resolve())
        group = cls(name, actor_class, config, hf, [host for host in hosts for _ in range(tensor_parallel)], threads)
        try:
            await group._up()
            address = None
            if len(group.ranks) > 1:
                address = (await group.call("open_store", ranks=group.ranks[:1]))[0]
            await group.call("join", address, tensor_parallel, threads)
            await group.call("build", hf, str(base_checkpoint.resolve()))
        except BaseException:
            group.stop()
            raise
        return group

    async def call(self, method: str, *arguments: Any, ranks: list[Any] | None = None) -> list[Any]:
        """Run a method on every rank (or on ``ranks``).

        Raises:
            RankLost: a rank is dead, has been silent for train.silence_s, or the call is over train.deadline_s.
            CheckpointError: a checkpoint cannot be written or does not fit; found on every rank together.
            TrainerError: the method failed on a rank. Others may be left in a collective: the group is of no use any more.
        """
        on = ranks or self.ranks
        work = asyncio.gather(*(_future(getattr(rank, method).remote(*arguments)) for rank in on))
        watch = asyncio.create_task(self._watch(method))
        try:
            await asyncio.wait({work, watch}, timeout=self._train.deadline_s, return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                return work.result()
            if watch.done():
                await watch
            raise RankLost(
                f"{self.name}.{method} did not end within train.deadline_s={self._train.deadline_s:g}; {self._whereabouts()}"
            )
        except RayTaskError as error:
            if isinstance(error.cause, CheckpointError):
                raise CheckpointError(f"{self.name}.{method}: {error.cause}") from error
            raise TrainerError(f"{self.name}.{method} failed: {error}") from error
        except RayActorError as error:
            raise RankLost(f"{self.name}.{method}: a rank's process has died: {error}; {self._whereabouts()}") from error
        except RayError as error:
            raise TrainerError(f"{self.name}.{method} failed: {error}") from error
        finally:
            watch.cancel()
            work.cancel()
            await asyncio.gather(watch, work, return_exceptions=True)

    def stop(self) -> None:
        """End the ranks' processes."""
        for rank in self.ranks:
            ray.kill(cast(Any, rank))

    async def _up(self) -> None:
        """Wait for the processes: a rank that starts is silent for a while."""
        starting = [_future(rank.where.remote()) for rank in self.ranks]
        try:
            async with asyncio.timeout(self._train.deadline_s):
                await asyncio.gather(*starting)
        except TimeoutError:
            late = [str(index) for index, future in enumerate(starting) if not future.done() or future.cancelled()]
            limit = self._train.deadline_s
            raise RankLost(f"{self.name}: rank {', '.join(late)} did not start within train.deadline_s={limit:g}") from None
        except RayError as error:
            raise RankLost(f"{self.name}: a rank could not be started: {error}") from error

    async def _watch(self, method: str) -> None:
        """Ask every rank where it is, until one does not answer for ``silence_s``."""
        everyone = range(len(self.ranks))
        while True:
            await asyncio.sleep(PING_S)  # first of all: calls that users wait for are shorter
            answered = await asyncio.gather(*(self._look(index, self._train.silence_s) for index in everyone))
            silent = [index for index in everyone if not answered[index]]
            if silent:
                await asyncio.gather(*(self._look(index, PING_S) for index in everyone if index not in silent))
                names = " and ".join(f"rank {index}" for index in silent)
                raise RankLost(
                    f"{self.name}.{method}: no answer from {names} for {self._train.silence_s:g} s; {self._whereabouts()}"
                )

    async def _look(self, index: int, patience_s: float) -> bool:
        """Note what a rank is doing; False where it does not answer."""
        try:
            async with asyncio.timeout(patience_s):
                doing, seconds = await _future(self.ranks[index].where.remote())
        except TimeoutError:
            return False
        self._seen[index] = (doing, time.monotonic() - seconds)
        return True

    def _whereabouts(self) -> str:
        now = time.monotonic()
        return "; ".join(f"rank {i} in {doing!r} for {now - since:.0f} s" for i, (doing, since) in enumerate(self._seen))


def _future(reference: Any) -> asyncio.Future[Any]:
    return asyncio.wrap_future(reference.future())
