"""The algorithm on one page: collect → score → train → publish → report.

One rollout step turns a batch of judged answers into a weight update and hands the new weights to the engines.
Each verb is idempotent by step number: what the ledger says is done is not done again, so a retry, a second flow or a
restarted service re-attaches where the step stands. Formulas: docs/ALGORITHM.md.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import structlog

from openclaw_core.config.schema import RunConfig
from openclaw_core.engines.protocol import Engine
from openclaw_core.errors import OpenClawError
from openclaw_core.gateway.admission import WaitingRoom
from openclaw_core.health import Health, Row, examine, w_opd_in_force
from openclaw_core.ledger import JudgedTurn, Ledger, StepRecord, StepState
from openclaw_core.loop.baseline import PERSONAS, baseline_metrics, with_baselines
from openclaw_core.loop.intake import Intake
from openclaw_core.loop.learner import Learner
from openclaw_core.loop.metrics import MetricsFile, rollout_metrics
from openclaw_core.loop.publishing import Publisher
from openclaw_core.loop.samples import HintEncoder, build_sample, unfit
from openclaw_core.rundir import RunDir
from openclaw_core.scorer.score import Score
from openclaw_core.types import Sample
from openclaw_core.weights.publish import PublishedWeights

log = structlog.get_logger(__name__)


class LoopError(OpenClawError):
    """A step cannot go on; the message says what was waited for or what went wrong."""


@dataclass(frozen=True, slots=True)
class Scored:
    """A batch on its way from ``score`` to ``train``."""

    step: int
    samples: list[Sample]
    probe: dict[str, tuple[float, ...]]
    scores: dict[str, Score] | None


class Loop:
    """The five verbs, over the parts that do the work."""

    def __init__(
        self,
        config: RunConfig,
        run: RunDir,
        ledger: Ledger,
        intake: Intake,
        room: WaitingRoom,
        learner: Learner,
        engine: Engine,
        encode_hint: HintEncoder,
    ) -> None:
        self.config, self.run = config, run
        self.ledger, self.intake, self.room = ledger, intake, room
        self.learner, self.engine, self.encode_hint = learner, engine, encode_hint
        self.metrics_file = MetricsFile(run.metrics_file, ledger)
        self.publisher = Publisher(room, engine, config.rollout)
        self.tell_health: Callable[[Health], None] = lambda health: None
        """Called once for each step after which the run is better or worse off than before."""
        self.health = examine((), config)
        self.version = 0
        self.holding = True
        """Under max_staleness 0: no main turn is admitted from batch-full to publish (and before the first collection)."""
        self._timings: dict[str, float] = {}
        self._scored: Scored | None = None
        self._handing_out = asyncio.Lock()
        """The trainer keeps the last weights that it was asked for: nobody else asks while engines take them."""

    @property
    def occupancy(self) -> int:
        """Places of the current batch that are taken or about to be; the waiting room admits main turns below batch_size."""
        if self.holding:
            return self.config.rollout.batch_size
        return self.intake.expected + self.intake.judging + self.intake.ready

    async def resume(self) -> None:
        """Serve the weights that the learner was restored to, and go on where the ledger stands (decision 6)."""
        self.version = self.learner.version
        await self._publish_weights()
        self.metrics_file.rebuild()
        self.health = examine(self._reported(), self.config)
        self.intake.resume()

    async def collect(self, step: int) -> dict[str, Any]:
        """Wait for ``batch_size`` turns with a signal, fit for the current weights; record them and their order."""
        if not self.ledger.step(step):
            started, size = time.monotonic(), self.config.rollout.batch_size
            self._admit_main_turns()
            while len(batch := self._fit_turns(step)) < size:
                await self.learner.offer([self._sample(judged) for judged in batch])
                if time.monotonic() - started > self.config.rollout.collect_deadline_s:
                    limit = self.config.rollout.collect_deadline_s
                    raise LoopError(f"step {step}: {self.waiting_for()} after rollout.collect_deadline_s={limit}")
                await self.intake.changed(timeout_s=1.0)
            self.holding = True
            self.ledger.open_step(step, [judged.turn.turn_id for judged in batch[:size]])
            self._timings = {"perf/collect_time": time.monotonic() - started}
        return {"samples": len(self._record(step).turn_ids)}

    async def score(self, step: int) -> dict[str, Any]:
        """Splice the hints, wait for the teacher's numbers, and let the engine recompute a few log-probs (parity probe).

        Where the trainer's ranks are the scorer, the teacher's forward passes belong to ``train`` (ALGORITHM 12, colocated).
        """
        if self._scored is None or self._scored.step != step:
            started = time.monotonic()
            samples = self.samples(self._record(step))
            probed = [s for s in samples if s.response_ids][: self.config.train.parity_probe]
            rows = [self.engine.prefill_logprobs(s.prompt_ids, s.response_ids, s.temperature) for s in probed]
            probe = {s.sample_id: row for s, row in zip(probed, await asyncio.gather(*rows), strict=True)}
            self._scored = Scored(step, samples, probe, await self.learner.scores(samples))
            self._timings["perf/score_time"] = time.monotonic() - started
        return {"samples": len(self._scored.samples), "hinted": sum(bool(s.hints) for s in self._scored.samples)}

    async def train(self, step: int) -> dict[str, Any]:
        """The optimiser's turn on the batch; recorded with its version before anything is published."""
        if self._record(step).state is StepState.COLLECTED:
            await self.score(step)
            assert self._scored is not None
            samples = self._scored.samples
            started = time.monotonic()
            before = self.ledger.step(step - 1)
            w_opd = w_opd_in_force(before and before.metrics, self.config)
            result = await self.learner.train(step, samples, self._scored.probe, self._scored.scores, w_opd)
            self._timings["perf/train_time"] = time.monotonic() - started
            metrics = {**rollout_metrics(samples, self.version, self.intake, self._timings), **result.metrics, **self._timings}
            metrics["train/w_opd"] = w_opd
            if self.config.loss.advantage_baseline == "persona_mean":
                metrics |= baseline_metrics(samples)
            metrics["train/skipped_steps"] = sum(record.skipped for record in self.ledger.steps()) + result.skipped
            version = self.version + (not result.skipped)
            self.ledger.record_training(step, version, result.skipped, metrics | {"train/bad_samples": result.bad_samples})
            self.learner.recorded()
            self.version = version
        record = self._record(step)
        self._check_skips(record)
        return {"version": record.version, "skipped": record.skipped, **_picked(record.metrics, "train/")}

    async def publish(self, step: int) -> dict[str, Any]:
        """Hand the new weights to the engines, without a user noticing. A skipped step publishes nothing."""
        record = self._record(step)
        if record.state is StepState.TRAINED:
            started = time.monotonic()
            if not record.skipped:
                await self._publish_weights()
            self._timings["perf/publish_time"] = time.monotonic() - started
            self.ledger.advance_step(step, StepState.PUBLISHED)
        if step < self.config.train.steps:
            self._admit_main_turns()
        return {"version": self.version}

    async def report(self, step: int) -> dict[str, Any]:
        """Write the step's metrics, and a checkpoint where one is due."""
        record = self._record(step)
        if record.state is StepState.PUBLISHED:
            metrics = self.metrics_file.complete(record, self._timings)
            health = examine([*self._reported(), {"step": step, **metrics}], self.config)
            metrics |= health.metrics()
            due = step % self.config.train.save_interval == 0 or step == self.config.train.steps
            if due or health.action in ("pause", "stop"):
                await self.learner.save(step, self.version)
            self.ledger.advance_step(step, StepState.REPORTED, metrics)
            self.metrics_file.append(self._record(step))
            self.health = health
            if health.changed:
                findings = [str(finding) for finding in health.verdict.findings]
                log.warning("health_changed", step=step, state=health.verdict.state, findings=findings)
                self.tell_health(health)
            log.info("step_reported", step=step, version=record.version, **_picked(metrics, "rollout/"))
        return self._record(step).metrics

    async def weights_again(self, version: int) -> PublishedWeights | None:
        """A published version for an engine that comes back; None where newer weights are about to be published.

        Where the trainer has died meanwhile, this brings it back. Raises TrainerError or CheckpointError.
        """
        async with self._handing_out:
            if version != self.version:
                return None
            weights = await self.learner.weights()  # after a training that is on its way
            return weights if version == self.version else None

    async def checkpoint(self) -> None:
        """Save what is trained so far, if it is not saved yet: a stopped run then has nothing to replay."""
        trained = [record.step for record in self.ledger.steps() if record.version is not None]
        if trained:
            await self.learner.save(trained[-1], self.version)

    def waiting_for(self) -> str:
        """What the present phase waits for, in words: new ranks, or what a collection still needs."""
        if self.learner.doing:
            return self.learner.doing
        size, intake, room = self.config.rollout.batch_size, self.intake, self.room
        waits = {
            "being generated": room.in_flight,
            "wait for a next message": intake.waiting,
            "wait for the judge": intake.judging,
            "wait at the gateway": room.queue,
        }
        there = ", ".join(f"{number} {what}" for what, number in waits.items() if number)
        away = f"; judge_unavailable: {outage}" if (outage := intake.judge.outage.describe()) else ""
        return f"{intake.ready} of {size} turns" + (f"; {there}" if there else "; no request has come lately") + away

    def _fit_turns(self, step: int) -> list[JudgedTurn]:
        fit: list[JudgedTurn] = []
        for judged in self.ledger.ready():
            reason = unfit(judged.turn, self.version, self.config.rollout.max_staleness)
            if reason is None:
                fit.append(judged)
            else:
                self.ledger.drop(judged.turn.turn_id, reason, step)
                self.room.notify()  # its place is free
        return fit

    def samples(self, record: StepRecord) -> list[Sample]:
        """The samples of a recorded step, in their order."""
        samples = [self._sample(judged) for judged in self.ledger.turns(record.turn_ids)]
        if self.config.loss.advantage_baseline == "none":
            return samples
        facts = self.ledger.session_facts
        personas = record.metrics.get(PERSONAS) or [facts.persona(sample.session_id) for sample in samples]
        return with_baselines(samples, personas, (other for other in self.ledger.steps() if other.step < record.step))

    def _sample(self, judged: JudgedTurn) -> Sample:
        return build_sample(judged, self.config, self.encode_hint)

    def _check_skips(self, record: StepRecord) -> None:
        skips, samples = self.ledger.consecutive_skips(), record.metrics.get("train/bad_samples", ())
        if skips:
            log.warning("step_skipped", step=record.step, in_a_row=skips, samples=samples, reason="the gradient is not finite")
        if skips > self.config.train.max_consecutive_skips:
            raise LoopError(
                f"step {record.step}: the gradient was not finite {skips} times in a row, more than "
                f"train.max_consecutive_skips allows; last in samples {', '.join(samples)}"
            )

    def _reported(self) -> list[Row]:
        """The metrics of the steps that are done, as the health rules read them."""
        done = (record for record in self.ledger.steps() if record.state is StepState.REPORTED)
        return [{"step": record.step, **record.metrics} for record in done]

    def _record(self, step: int) -> StepRecord:
        record = self.ledger.step(step)
        if record is None:
            raise LoopError(f"step {step} has no batch yet: collect comes first")
        return record

    def _admit_main_turns(self) -> None:
        self.holding = False
        self.room.notify()

    async def _publish_weights(self) -> None:
        async with self._handing_out:
            weights = await self.learner.weights()
            await self.publisher.publish(weights, self.version)
            await self.learner.published(weights, self.version)


def _picked(metrics: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    return {key.removeprefix(prefix): value for key, value in metrics.items() if key.startswith(prefix)}
