"""Trainer and scorer as one: brought to where the ledger stands, and brought there again when anything goes wrong.

The ledger is the truth about what was trained on, the checkpoint about the weights. Checkpoint k plus the recorded samples
of steps k+1..n give the weights of step n again (ARCHITECTURE, decision 6): bit for bit on CPU with the same ranks. So
ranks are never repaired. Whenever their weights may not be those of the ledger's last step, they are started anew.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import structlog

from openclaw_core.config.schema import RunConfig
from openclaw_core.inspection.tables import TokenTables
from openclaw_core.ledger import Ledger, StepRecord
from openclaw_core.rundir import RunDir
from openclaw_core.scorer.group import ScorerGroup
from openclaw_core.scorer.score import Score
from openclaw_core.trainer.group import PublishedWeights, TrainerError, TrainerGroup, TrainResult
from openclaw_core.types import Sample
from openclaw_core.weights.layout import hf_directory, torch_dist_directory

log = structlog.get_logger(__name__)

T = TypeVar("T")


class Learner:
    """See the module's docstring. ``samples_of`` builds a recorded step's samples.

    Any failure of the trainer is met once by new ranks and a second try; so is one of the scorer, which has nothing to lose.
    """

    def __init__(
        self, config: RunConfig, run: RunDir, ledger: Ledger, samples_of: Callable[[StepRecord], list[Sample]]
    ) -> None:
        self._config, self._run, self._ledger, self._samples_of = config, run, ledger, samples_of
        self._tables = TokenTables(run.tables, config.train.token_tables)
        self.trainer: TrainerGroup | None = None
        """None where the ranks' weights are not those of the ledger's last trained step."""
        self.scorer: ScorerGroup | None = None
        self.version = 0
        """Of the weights that were published last: the scorer's old policy."""
        self.doing = ""
        """For people, while new ranks are brought up."""
        self._unrecorded = False
        self._lock = asyncio.Lock()

    async def restore(self) -> int:
        """The newest whole checkpoint k, or the start model; then steps k+1..n again. Returns the weights' version.

        Raises TrainerError or CheckpointError.
        """
        async with self._lock:
            await self._bring_up()
        return self.version

    async def offer(self, samples: Sequence[Sample]) -> None:
        """Samples that will probably be trained on: a scorer of its own begins with them."""
        if self.scorer:
            await self.scorer.offer(samples)

    async def scores(self, samples: Sequence[Sample]) -> dict[str, Score] | None:
        """The scores of a batch; None where the trainer's own ranks do the scoring."""
        if self._config.scorer.placement == "colocated":
            return None
        return await self._twice(lambda trainer: self._score(trainer, samples))

    async def train(
        self,
        step: int,
        samples: list[Sample],
        probe: Mapping[str, tuple[float, ...]],
        scores: Mapping[str, Score] | None,
        w_opd: float | None = None,
    ) -> TrainResult:
        """The optimiser steps of one rollout, with ``w_opd`` in place of loss.w_opd.

        Until ``recorded`` is called, the weights are ahead of the ledger.
        """

        async def train(trainer: TrainerGroup) -> TrainResult:
            self._unrecorded = True
            result = await trainer.train(step, samples, probe, scores, w_opd)
            # Under the lock: from its release to ``recorded`` nothing is awaited, so that no other call finds these weights
            # ahead of the ledger and drops them.
            await self._keep_table(step, result)
            return result

        return await self._twice(train)

    def recorded(self) -> None:
        """The ledger has what ``train`` did."""
        self._unrecorded = False

    async def weights(self) -> PublishedWeights:
        """The current weights, ready to be published."""
        return await self._twice(lambda trainer: trainer.weights())

    async def published(self, weights: PublishedWeights, version: int) -> None:
        """A version is served now: it is the scorer's old policy from here on."""
        self.version = version
        if self.scorer:
            try:
                await self.scorer.load_weights(weights, version)
            except TrainerError as error:
                self._drop_scorer(error)

    async def save(self, step: int, version: int) -> str:
        """Write a checkpoint, whole or not at all; returns its path."""
        meta = {
            "step": step,
            "version": version,
            "optimizer": self._config.optimizer.model_dump(mode="json"),
            "ledger": self._ledger.position(),
        }
        return await self._twice(lambda trainer: trainer.save(step, meta))

    async def export(self, directory: Path) -> str:
        """Write the current weights as an HF model; returns their checksum."""
        return await self._twice(lambda trainer: trainer.export(directory))

    def stop(self) -> None:
        """End the ranks' processes."""
        for group in (self.trainer, self.scorer):
            if group:
                group.stop()
        self.trainer = self.scorer = None

    async def _twice(self, call: Callable[[TrainerGroup], Awaitable[T]]) -> T:
        """One call at a time, to ranks whose weights are right; once more, to new ranks, where it fails."""
        async with self._lock:
            for last in (False, True):
                if self._unrecorded or self.trainer is None:
                    await self._bring_up()
                assert self.trainer is not None
                try:
                    return await call(self.trainer)
                except TrainerError as error:
                    log.error("trainer_lost", reason=str(error))
                    self._drop_trainer()
                    if last:
                        raise
        raise AssertionError("the loop returns or raises")

    async def _bring_up(self) -> None:
        """New ranks, with the weights of the ledger's last trained step; or none, and the error."""
        self._drop_trainer()
        self.doing = "start the trainer"
        config, run = self._config, self._run
        trainer = await TrainerGroup.start(config, hf_directory(config), torch_dist_directory(config), run.checkpoints)
        try:
            step, version = await trainer.load()
            for record in self._ledger.steps():
                if record.step > step and record.version is not None and not record.skipped:
                    await self._replay(trainer, record, version)
                    version = record.version
            self.version = version
            if config.scorer.placement == "separate":
                await self._present_scorer(trainer)
        except BaseException:
            trainer.stop()
            raise
        self.trainer, self.doing = trainer, ""
        log.info("weights_restored", step=max([step, *(record.step for record in self._ledger.steps() if record.version)]))

    async def _replay(self, trainer: TrainerGroup, record: StepRecord, version: int) -> None:
        self.doing = f"replay step {record.step}"
        log.info("replay_step", step=record.step, samples=len(record.turn_ids))
        self.version, samples, scores = version, self._samples_of(record), None
        if self._config.scorer.placement == "separate":
            scores = await self._score(trainer, samples)
        result = await trainer.train(record.step, samples, {}, scores, record.metrics.get("train/w_opd"))
        made, recorded = result.metrics["train/optimizer_steps"], record.metrics.get("train/optimizer_steps")
        if result.skipped or recorded not in (None, made):
            raise TrainerError(
                f"step {record.step} made {recorded or 'all its'} optimiser steps when it was trained and {made} when it was "
                "replayed: a gradient was not finite"
            )
        await self._keep_table(record.step, result)

    async def _keep_table(self, step: int, result: TrainResult) -> None:
        """Write what the loss saw of every token. What people look at is not worth a step: training goes on without it."""
        try:
            await asyncio.to_thread(self._tables.write, step, result.table)
        except OSError as error:
            log.error("token_table_not_written", step=step, path=str(self._run.tables), reason=str(error))

    async def _score(self, trainer: TrainerGroup, samples: Sequence[Sample]) -> dict[str, Score]:
        """By a scorer that has the trainer's weights; once more, by a new one, where it fails."""
        for last in (False, True):
            try:
                scorer = await self._present_scorer(trainer)
                scores = await scorer.scores(samples)
                break
            except TrainerError as error:
                self._drop_scorer(error)
                if last:
                    raise
        else:
            raise AssertionError("the loop breaks or raises")
        stale = {score.version for score in scores.values()} - {self.version}
        if stale:
            raise TrainerError(f"scores of version {sorted(stale)} for a step of version {self.version}")
        return scores

    async def _present_scorer(self, trainer: TrainerGroup) -> ScorerGroup:
        """The scorer, with the trainer's weights of the present version; a new one where there is none."""
        scorer = self.scorer
        if scorer is None:
            self.doing = "start the scorer"
            scorer = await ScorerGroup.start(self._config, hf_directory(self._config), torch_dist_directory(self._config))
        try:
            if scorer.version != self.version or self.scorer is None:
                await scorer.load_weights(await trainer.weights(), self.version)
        except BaseException:
            scorer.stop()
            self.scorer = None
            raise
        self.scorer = scorer
        return scorer

    def _drop_trainer(self) -> None:
        if self.trainer:
            self.trainer.stop()
        self.trainer, self._unrecorded = None, False

    def _drop_scorer(self, reason: TrainerError) -> None:
        log.error("scorer_lost", reason=str(reason))
        if self.scorer:
            self.scorer.stop()
        self.scorer = None
