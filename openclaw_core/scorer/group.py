"""The scorer as the loop sees it: samples are offered as they become ready, and their scores are there when asked for."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import structlog

from openclaw_core.config.schema import RunConfig
from openclaw_core.planning.placement import place_ranks
from openclaw_core.scorer.score import Score
from openclaw_core.scorer.worker import ScorerWorker
from openclaw_core.trainer.errors import TrainerError
from openclaw_core.trainer.group import PublishedWeights
from openclaw_core.trainer.packing import micro_batches
from openclaw_core.trainer.ranks import RankGroup
from openclaw_core.types import Sample
from openclaw_core.weights.errors import PublishError

log = structlog.get_logger(__name__)


class ScorerGroup:
    """scorer.data_parallel copies of the model; each takes what is queued, so no split has to match the trainer's.

    A score is keyed by its sample and carries the version that it was made with; one of another version is made again.
    """

    def __init__(self, copies: list[RankGroup], config: RunConfig) -> None:
        self.copies, self._config = copies, config
        self._queue: dict[str, Sample] = {}
        self._scores: dict[str, Score] = {}
        self.version = 0
        """Of the weights that all copies have."""
        self._in_flight: set[str] = set()
        self._loading = False
        self._changed = asyncio.Condition()
        self._failure: TrainerError | None = None
        self._tasks = [asyncio.create_task(self._serve(copy)) for copy in copies]

    @classmethod
    async def start(cls, config: RunConfig, hf_dir: Path, base_checkpoint: Path) -> ScorerGroup:
        """Start the copies, with the start model's weights: version 0. Raises TrainerError."""
        placed = place_ranks(config).scorer
        assert placed is not None, "nobody starts a scorer with scorer.placement=colocated"
        starting = [
            asyncio.create_task(
                RankGroup.start(
                    f"scorer-{index}",
                    ScorerWorker,
                    config,
                    hf_dir,
                    base_checkpoint,
                    tensor_parallel=config.scorer.tensor_parallel,
                    hosts=[host],
                    threads=config.scorer.threads,
                )
            )
            for index, host in enumerate(placed.hosts)
        ]
        try:
            return cls(await asyncio.gather(*starting), config)
        except BaseException:
            for task in starting:
                task.cancel()
            for copy in await asyncio.gather(*starting, return_exceptions=True):
                if isinstance(copy, RankGroup):
                    copy.stop()
            raise

    async def load_weights(self, weights: PublishedWeights, version: int) -> None:
        """Give every copy a published version; what is being scored ends first, what is queued is scored with it."""
        async with self._changed:
            self._loading = True
            try:
                await self._changed.wait_for(lambda: not self._in_flight or self._failure)
                self._raise_failure()
                sources = await self._sources(weights)
                calls = [
                    copy.call("load_weights", source, version, weights.checksum)
                    for copy, source in zip(self.copies, sources, strict=True)
                ]
                await asyncio.gather(*calls)
                self.version = version
            finally:
                self._loading = False
                self._changed.notify_all()

    async def offer(self, samples: Sequence[Sample]) -> None:
        """Queue what has no score of the present version yet."""
        async with self._changed:
            for sample in samples:
                score = self._scores.get(sample.sample_id)
                if (score is None or score.version != self.version) and sample.sample_id not in self._in_flight:
                    self._queue[sample.sample_id] = sample
            self._changed.notify_all()

    async def scores(self, samples: Sequence[Sample]) -> dict[str, Score]:
        """The scores of these samples with the present version; waits for them, and forgets all others.

        Raises TrainerError where a copy has failed, or after train.deadline_s.
        """
        await self.offer(samples)
        wanted = {sample.sample_id for sample in samples}

        def there() -> bool:
            have = {name for name, score in self._scores.items() if score.version == self.version}
            return self._failure is not None or wanted <= have

        try:
            async with asyncio.timeout(self._config.train.deadline_s), self._changed:
                await self._changed.wait_for(there)
                self._raise_failure()
                self._scores = {name: self._scores[name] for name in wanted}
                return dict(self._scores)
        except TimeoutError:
            missing = sorted(wanted - self._scores.keys())
            limit = self._config.train.deadline_s
            raise TrainerError(f"scores of {len(missing)} samples were not there after train.deadline_s={limit:g}") from None

    def stop(self) -> None:
        """End the copies' processes."""
        for task in self._tasks:
            task.cancel()
        for copy in self.copies:
            copy.stop()

    async def _sources(self, weights: PublishedWeights) -> list[Any]:
        """Where each copy gets a version from: the trainer's memory, or, on another host, Ray's object store."""
        shared = weights.reference[0]
        reached = await asyncio.gather(*(copy.call("reaches", shared) for copy in self.copies))
        if all(map(all, reached)):
            return [shared] * len(self.copies)
        try:
            (stored,) = await weights.elsewhere()
        except PublishError as error:
            raise TrainerError(f"the scorer on another host cannot get the weights: {error}") from error
        return [shared if all(ranks) else stored for ranks in reached]

    async def _serve(self, copy: RankGroup) -> None:
        while True:
            async with self._changed:
                await self._changed.wait_for(lambda: self._queue and not self._loading)
                samples = self._take()
            try:
                scores: list[Score] = (await copy.call("score", samples))[0]
            except TrainerError as error:
                log.error("scorer_failed", scorer=copy.name, reason=str(error))
                async with self._changed:
                    self._failure = error
                    self._changed.notify_all()
                return
            async with self._changed:
                self._in_flight -= {sample.sample_id for sample in samples}
                self._scores |= {score.sample_id: score for score in scores}
                self._changed.notify_all()

    def _take(self) -> list[Sample]:
        """The next micro-batch of what is queued."""
        first = micro_batches(list(self._queue.values()), self._config.train.max_tokens_per_rank)[0][0]
        for sample in first:
            del self._queue[sample.sample_id]
        self._in_flight |= {sample.sample_id for sample in first}
        return list(first)

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure
