"""The trainer as the loop sees it: one Ray actor a rank, every call with a deadline."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import ray
from ray.exceptions import RayError

from openclaw_core.config.schema import RunConfig
from openclaw_core.errors import OpenClawError
from openclaw_core.types import Sample


class TrainerError(OpenClawError):
    """The trainer failed or did not answer within its deadline; the message names the call."""


@dataclass(frozen=True, slots=True)
class TrainResult:
    """What one optimiser step did. ``bad_samples``: those of the micro-batches whose gradient was not finite."""

    metrics: dict[str, Any]
    skipped: bool
    consecutive_skips: int
    bad_samples: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PublishedWeights:
    """The policy's weights under HF names, in Ray's object store, with their checksum."""

    reference: list[Any]
    """One object reference, in a list so that Ray passes it on without fetching it."""
    checksum: str


class TrainerGroup:
    """The ranks of one trainer. Every rank runs every call; rank 0's answer counts."""

    def __init__(self, config: RunConfig, hf_dir: Path, base_checkpoint: Path) -> None:
        from openclaw_core.trainer.worker import TrainerWorker

        self._deadline_s = config.train.deadline_s
        environment = {
            "OMP_NUM_THREADS": str(config.train.threads),
            "OMP_WAIT_POLICY": "passive",
            "TORCHDYNAMO_DISABLE": "1",
            "CUDA_DEVICE_MAX_CONNECTIONS": "1",
        }
        actor = ray.remote(num_cpus=0, runtime_env={"env_vars": environment})(TrainerWorker)
        world = config.train.tensor_parallel * config.train.data_parallel
        self._ranks = [
            actor.remote(config.model_dump_json(), str(hf_dir.resolve()), str(base_checkpoint.resolve()), rank, world)
            for rank in range(world)
        ]

    async def load(self, checkpoints: Path) -> tuple[int, int]:
        """Load the newest whole checkpoint, or the start model where there is none; returns (step, weight version)."""
        return await self._all("load", str(checkpoints.resolve()))

    async def train(self, step: int, samples: list[Sample], probe: dict[str, tuple[float, ...]]) -> TrainResult:
        """One optimiser step. ``probe``: the engine's own log-probs of some of the samples, for the parity metric."""
        return await self._all("train", step, samples, probe)

    async def weights(self) -> PublishedWeights:
        """The current weights, ready to be published."""
        reference, checksum = await self._all("weights")
        return PublishedWeights(reference, checksum)

    async def save(self, checkpoints: Path, step: int, version: int) -> str:
        """Write a checkpoint whole or not at all; returns its path."""
        return await self._all("save", str(checkpoints.resolve()), step, version)

    async def export(self, directory: Path) -> str:
        """Write the current weights as an HF model; returns their checksum."""
        return await self._all("export", str(directory.resolve()))

    def stop(self) -> None:
        """End the ranks' processes."""
        for rank in self._ranks:
            ray.kill(cast(Any, rank))

    async def _all(self, method: str, *arguments: Any) -> Any:
        calls = [getattr(rank, method).remote(*arguments) for rank in self._ranks]
        try:
            return (await asyncio.wait_for(asyncio.gather(*calls), self._deadline_s))[0]
        except TimeoutError:
            raise TrainerError(f"trainer.{method} did not answer within train.deadline_s={self._deadline_s}") from None
        except RayError as error:
            raise TrainerError(f"trainer.{method} failed: {error}") from error
