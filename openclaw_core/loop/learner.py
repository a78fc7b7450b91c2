"""Trainer and scorer as one: brought to where the ledger stands, and brought there again when a rank is lost.

The ledger is the truth about what was trained on, the checkpoint about the weights. Checkpoint k plus the recorded samples
of steps k+1..n give the weights of step n again (ARCHITECTURE, decision 6): bit for bit on CPU with the same ranks.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import structlog

from openclaw_core.config.schema import RunConfig
from openclaw_core.ledger import Ledger, StepRecord
from openclaw_core.rundir import RunDir
from openclaw_core.scorer.group import ScorerGroup
from openclaw_core.scorer.score import Score
from openclaw_core.trainer.group import PublishedWeights, RankLost, TrainerError, TrainerGroup, TrainResult
from openclaw_core.types import Sample
from openclaw_core.weights.layout import hf_directory, torch_dist_directory

log = structlog.get_logger(__name__)

T = TypeVar("T")


class Learner:
    """See the module's docstring. ``samples_of`` builds a recorded step's samples."""

    def __init__(
        self,
        config: RunConfig,
        run: RunDir,
        ledger: Ledger,
        samples_of: Callable[[StepRecord], list[Sample]],
        trainer: TrainerGroup,
        scorer: ScorerGroup | None,
    ) -> None:
        self._config, self._run, self._ledger, self._samples_of = config, run, ledger, samples_of
        self.trainer, self.scorer = trainer, scorer
        self._version = 0
        """The scorer's."""

    @classmethod
    async def start(
        cls, config: RunConfig, run: RunDir, ledger: Ledger, samples_of: Callable[[StepRecord], list[Sample]]
    ) -> Learner:
        """Start the ranks, with the start model's weights. Raises TrainerError."""
        trainer = await _start_trainer(config, run)
        try:
            scorer = await _start_scorer(config)
        except BaseException:
            trainer.stop()
            raise
        return cls(config, run, ledger, samples_of, trainer, scorer)

    async def restore(self) -> int:
        """The newest whole checkpoint k, or the start model; then steps k+1..n again. Returns the weights' version.

        The scorer has that version too.
        """
        step, version = await self.trainer.load()
        for record in self._ledger.steps():
            if record.step <= step or record.version is None or record.skipped:
                continue
            log.info("replay_step", step=record.step, samples=len(record.turn_ids))
            if self.scorer:
                await self.published(await self.trainer.weights(), version)
            samples = self._samples_of(record)
            result = await self.trainer.train(record.step, samples, {}, await self.scores(samples))
            if result.skipped:
                raise TrainerError(f"step {record.step} was trained, but not when it was replayed: its gradient is not finite")
            version = record.version
        await self.published(await self.trainer.weights(), version)
        return version

    async def offer(self, samples: Sequence[Sample]) -> None:
        """Samples that will probably be trained on: a scorer of its own begins with them."""
        if self.scorer:
            await self.scorer.offer(samples)

    async def scores(self, samples: Sequence[Sample]) -> dict[str, Score] | None:
        """The scores of a batch; None where the trainer's own ranks do the scoring."""
        if self.scorer is None:
            return None
        try:
            return await self.scorer.scores(samples)
        except RankLost as error:
            await self._restart_scorer(self.scorer, error)
        return await self.scorer.scores(samples)

    async def train(
        self,
        step: int,
        samples: list[Sample],
        probe: Mapping[str, tuple[float, ...]],
        scores: Mapping[str, Score] | None,
    ) -> TrainResult:
        """The optimiser steps of one rollout."""
        return await self._surely(lambda trainer: trainer.train(step, samples, probe, scores))

    async def weights(self) -> PublishedWeights:
        """The current weights, ready to be published."""
        return await self._surely(lambda trainer: trainer.weights())

    async def published(self, weights: PublishedWeights, version: int) -> None:
        """A version is served now: it is the scorer's old policy from here on."""
        self._version = version
        if self.scorer is None:
            return
        try:
            await self.scorer.load_weights(weights, version)
        except RankLost as error:
            await self._restart_scorer(self.scorer, error)

    async def save(self, step: int, version: int) -> str:
        """Write a checkpoint, whole or not at all; returns its path."""
        meta = {
            "step": step,
            "version": version,
            "optimizer": self._config.optimizer.model_dump(mode="json"),
            "ledger": self._ledger.position(),
        }
        return await self._surely(lambda trainer: trainer.save(step, meta))

    async def export(self, directory: Path) -> str:
        """Write the current weights as an HF model; returns their checksum."""
        return await self._surely(lambda trainer: trainer.export(directory))

    def stop(self) -> None:
        """End the ranks' processes."""
        self.trainer.stop()
        if self.scorer:
            self.scorer.stop()

    async def _surely(self, call: Callable[[TrainerGroup], Awaitable[T]]) -> T:
        """Call the trainer; where a rank is lost, start new ones, bring them to the ledger's last step, and call again."""
        try:
            return await call(self.trainer)
        except RankLost as error:
            log.error("trainer_lost", reason=str(error))
        self.trainer.stop()
        self.trainer = await _start_trainer(self._config, self._run)
        version = await self.restore()
        log.info("trainer_restarted", version=version)
        return await call(self.trainer)

    async def _restart_scorer(self, lost: ScorerGroup, reason: RankLost) -> None:
        """Scores are made again from the samples, so a scorer has nothing to lose."""
        log.error("scorer_lost", reason=str(reason))
        lost.stop()
        self.scorer = scorer = await ScorerGroup.start(
            self._config, hf_directory(self._config), torch_dist_directory(self._config)
        )
        await scorer.load_weights(await self.trainer.weights(), self._version)
        log.info("scorer_restarted", version=self._version)


async def _start_trainer(config: RunConfig, run: RunDir) -> TrainerGroup:
    return await TrainerGroup.start(config, hf_directory(config), torch_dist_directory(config), run.checkpoints)


async def _start_scorer(config: RunConfig) -> ScorerGroup | None:
    if config.scorer.placement == "colocated":
        return None
    return await ScorerGroup.start(config, hf_directory(config), torch_dist_directory(config))
