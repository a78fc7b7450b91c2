"""The trainer as the loop sees it: one Ray actor a rank, one answer for all of them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog

from openclaw_core.config.schema import RunConfig
from openclaw_core.losses import add_sums, finish_metrics
from openclaw_core.planning.placement import place_ranks
from openclaw_core.scorer.score import Score
from openclaw_core.trainer import retention
from openclaw_core.trainer.errors import RankLost, TrainerError
from openclaw_core.trainer.part_stores import PartStores
from openclaw_core.trainer.publisher import Publication
from openclaw_core.trainer.ranks import RankGroup
from openclaw_core.trainer.token_table import SampleTokens
from openclaw_core.trainer.worker import RankResult, TrainerWorker
from openclaw_core.types import DropReason, Sample
from openclaw_core.weights.publish import PublishedWeights

log = structlog.get_logger(__name__)

__all__ = ["PublishedWeights", "RankLost", "TrainResult", "TrainerError", "TrainerGroup"]


@dataclass(frozen=True, slots=True)
class TrainResult:
    """What a rollout's optimiser steps did. ``skipped``: none was made. ``bad_samples``: of non-finite micro-batches."""

    metrics: dict[str, Any]
    skipped: bool
    bad_samples: tuple[str, ...]
    table: tuple[SampleTokens, ...] = ()
    """What the loss saw of every token, in the batch's order; empty with train.token_tables = 0."""


class TrainerGroup:
    """The ranks of one trainer: train.data_parallel copies of the model over train.tensor_parallel ranks each."""

    def __init__(self, ranks: RankGroup, stores: PartStores, config: RunConfig, checkpoints: Path) -> None:
        self.ranks, self._stores, self._config, self._checkpoints = ranks, stores, config, checkpoints

    @classmethod
    async def start(cls, config: RunConfig, hf_dir: Path, base_checkpoint: Path, checkpoints: Path) -> TrainerGroup:
        """Start the ranks, with the start model's weights. ``checkpoints``: where they go on each host. Raises TrainerError."""
        train = config.train
        ranks = await RankGroup.start(
            "trainer",
            TrainerWorker,
            config,
            hf_dir,
            base_checkpoint,
            tensor_parallel=train.tensor_parallel,
            hosts=place_ranks(config).trainer.hosts,
            threads=train.threads,
        )
        try:
            stores = await PartStores.start(config, checkpoints.resolve())
        except BaseException:
            ranks.stop()
            raise
        return cls(ranks, stores, config, checkpoints.resolve())

    async def load(self) -> tuple[int, int]:
        """Continue from the newest whole checkpoint, or stay at the start model where there is none.

        Returns (step, weight version). Raises CheckpointError where there are checkpoints and none is whole.
        """
        chosen = await self._stores.newest_whole()
        if chosen is None:
            return 0, 0
        await self.ranks.call("load", str(chosen.directory), chosen.info, self._stores.handles)
        meta = chosen.info.meta
        log.info("checkpoint_loaded", path=str(chosen.directory), **meta)
        return int(meta["step"]), int(meta["version"])

    async def train(
        self,
        step: int,
        samples: list[Sample],
        probe: Mapping[str, tuple[float, ...]],
        scores: Mapping[str, Score] | None = None,
        w_opd: float | None = None,
    ) -> TrainResult:
        """The optimiser steps of one rollout.

        ``probe``: the engine's own log-probs of some of the samples, for the parity metric; ``scores``: of a separate scorer;
        ``w_opd``: in place of loss.w_opd.
        """
        results: list[RankResult] = await self.ranks.call("train", step, samples, dict(probe), scores, w_opd)
        order = {sample.sample_id: index for index, sample in enumerate(samples)}
        return _merge(results, order, self._config.train.tensor_parallel, self._config.train.steps_per_rollout)

    async def weights(self) -> PublishedWeights:
        """The current weights, ready to be published; those of the last call are not any more."""
        made: Publication = (await self.ranks.call("weights"))[0]
        return PublishedWeights(
            checksum=made.checksum,
            reference=[made.reference],
            buckets=made.buckets.value,
            rank=self.ranks.ranks[0],
            generation=made.reference.generation,
            deadline_s=self._config.train.collective_s,
        )

    async def save(self, step: int, meta: Mapping[str, Any]) -> str:
        """Write a checkpoint, whole or not at all, and forget those that need not be kept; returns its path.

        Every host keeps what its ranks wrote. ``meta`` is JSON, with ``step`` and ``version``.
        """
        directory = retention.step_directory(self._checkpoints, step)
        if retention.latest(self._checkpoints) != directory:
            train = self._config.train
            written = await self.ranks.call("save", str(directory))
            await asyncio.to_thread(retention.commit, directory, written, meta)
            kept = await asyncio.to_thread(retention.prune, self._checkpoints, train.keep_last, train.keep_every)
            await self._stores.retain(kept)
            log.info("checkpoint_saved", path=str(directory), step=step)
        return str(directory)

    async def export(self, directory: Path) -> str:
        """Write the current weights as an HF model; returns their checksum."""
        return (await self.ranks.call("export", str(directory.resolve())))[0]

    def stop(self) -> None:
        """End the ranks' processes."""
        self.ranks.stop()
        self._stores.stop()


def _merge(results: list[RankResult], order: Mapping[str, int], tensor_parallel: int, steps: int) -> TrainResult:
    """Ranks that share a copy of the model have the same sums and samples: one of each counts."""
    copies = results[::tensor_parallel]
    sums = add_sums(result.sums for result in copies)
    masked: dict[str, DropReason] = {}
    for result in copies:
        masked |= result.masked
    norms, skipped = results[0].grad_norms, results[0].skipped
    parity = sums["parity"] / sums["parity_tokens"] if sums.get("parity_tokens") else None
    positions = sum(result.positions for result in copies)
    metrics = {f"train/{name}": value for name, value in finish_metrics(sums, single_step=steps == 1).items()}
    metrics |= {
        "train/optimizer_steps": skipped.count(False),
        "train/loss": sums.get("loss"),
        "train/grad_norm": sum(norms) / len(norms) if norms else None,
        "train/lr": results[0].learning_rate,
        "train/engine_parity_abs_diff": parity,
        "train/padding_share": 1 - sum(result.tokens for result in copies) / positions,
        "rollout/dropped": dict(Counter(reason.value for reason in masked.values())),
    }
    bad = dict.fromkeys(sample for result in results for sample in result.bad_samples)
    table = sorted((row for result in copies for row in result.table), key=lambda row: order[row.sample_id])
    return TrainResult(metrics, all(skipped), tuple(bad), tuple(table))
