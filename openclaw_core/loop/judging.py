"""Turns on their way to a verdict: asked, asked again while the judge is away, and settled by policy where it stays away."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Iterable
from typing import Any

import structlog

from openclaw_core.config.schema import RunConfig
from openclaw_core.judge import Ballot, Judge, JudgeOverflow, JudgeUnavailable
from openclaw_core.judge.stats import JudgeStats
from openclaw_core.judge.voting import Refuse
from openclaw_core.ledger import Ledger, TurnStatus
from openclaw_core.loop.outage import Outage
from openclaw_core.loop.samples import HintEncoder, hint_refusal
from openclaw_core.types import DropReason, Judgement, Question, Turn

log = structlog.get_logger(__name__)

FIRST_PAUSE_S = 5.0
LONGEST_PAUSE_S = 120.0
"""Before a turn whose judge was unavailable is asked again. Pauses double, and end at once when the judge is back."""


class Judging:
    """Settles each turn that it is told to ``ask`` about. Turns are read from the ledger when it is their turn, at most
    ``judge.max_concurrent`` at once, so that a long queue takes no memory.
    """

    def __init__(
        self, ledger: Ledger, judge: Judge, on_change: Callable[[], None], config: RunConfig, encode_hint: HintEncoder
    ) -> None:
        self._ledger, self._judge, self._on_change = ledger, judge, on_change
        self._config, self._encode_hint = config, encode_hint
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._room = asyncio.Semaphore(config.judge.max_concurrent)
        self._paused: set[str] = set()
        self.outage = Outage(config.judge.away_s, judge.client.model, config.judge.unavailable)
        self.judged = 0
        """Verdicts since the last ``take_metrics``."""
        self.without_signal = 0

    @property
    def unavailable(self) -> int:
        """Turns that wait because the judge gave too few votes."""
        return len(self._paused)

    @property
    def stats(self) -> JudgeStats:
        """Of the judge's work."""
        return self._judge.stats

    def status(self) -> dict[str, Any]:
        """For GET /status: turns that wait for a judge that is away, since when it is, and the alert once it is one."""
        return {
            "unavailable": self.unavailable,
            "away_s": round(self.outage.seconds, 1),
            "alert": self.outage.alert,
        }

    def ask(self, turn_id: str) -> None:
        """Begin to judge a turn whose next state is in the ledger."""
        if turn_id not in self._tasks:
            task = asyncio.create_task(self._settle(turn_id), name=turn_id)
            self._tasks[turn_id] = task
            task.add_done_callback(self._done)

    def forget(self, turn_ids: Iterable[str]) -> None:
        """These turns have been dropped: their votes are wanted no more."""
        for turn_id in turn_ids:
            if task := self._tasks.get(turn_id):
                task.cancel()

    def refuse_again(self, session_id: str) -> int:
        """Choose the hints of the session's ready turns anew, the known answer told. Returns how many turns changed."""
        changed = 0
        for judged in self._ledger.session_facts.ready(session_id):
            old = judged.judgement
            if old.policy == "grpo_only":  # its hints had no quorum
                continue
            new = self._judge.choose_again(old, self._refuse(judged.turn))
            if (new.hints, new.refused) != (old.hints, old.refused):
                self._ledger.change_hints(new)
                for _, reason in set(new.refused) - set(old.refused):
                    self._judge.stats.refused(reason)
                changed += 1
        return changed

    def take_metrics(self) -> dict[str, Any]:
        """The step's metrics of the judge; the next step's begin now."""
        metrics = {
            "rollout/no_signal_rate": self.without_signal / self.judged if self.judged else None,
            **self._judge.stats.take(),
        }
        self.judged = self.without_signal = 0
        return metrics

    async def stop(self) -> None:
        """Cancel outstanding votes and close the judge's connections."""
        self.outage.stop()
        tasks = [*self._tasks.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._judge.close()

    async def _settle(self, turn_id: str) -> None:
        kept: Ballot = {}
        began, pause_s = time.monotonic(), FIRST_PAUSE_S
        while True:
            async with self._room:
                found = self._ledger.judging(turn_id)
                if found is None:
                    return
                turn, state = found
                refuse = self._refuse(turn)
                try:
                    judgement = await self._judge.judge(turn, state, kept=kept, refuse=refuse)
                except JudgeOverflow as error:
                    self._ledger.drop(turn_id, DropReason.JUDGE_OVERFLOW, self._ledger.next_step())
                    log.warning("turn_dropped", turn=turn_id, session=turn.session_id, reason=str(error))
                    self._on_change()
                    return
                except JudgeUnavailable as error:
                    kept, unavailable = error.ballot, error
                    self._note(turn, error)
                    judgement = self._by_policy(turn_id, error, time.monotonic() - began, refuse)
                else:
                    self.outage.served()
                    unavailable = None
            if judgement is not None:
                self._record(judgement)
                return
            assert unavailable is not None
            await self._pause(turn_id, random.uniform(0.5, 1.0) * pause_s, unavailable)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    def _note(self, turn: Turn, error: JudgeUnavailable) -> None:
        self._judge.stats.unavailable()
        self.outage.failed(error.missing, str(error), error.denied)
        log.warning("judge_unavailable", turn=turn.turn_id, session=turn.session_id, reason=str(error))

    def _by_policy(self, turn_id: str, error: JudgeUnavailable, waited_s: float, refuse: Refuse) -> Judgement | None:
        """The verdict by one question alone, where ``judge.unavailable`` allows it and the other has been missing for long."""
        policy = self._config.judge.unavailable
        only = {"grpo_only": Question.REWARD, "opd_only": Question.HINT}.get(policy)
        if only is None:
            return None
        other = Question.HINT if only is Question.REWARD else Question.REWARD
        if max(waited_s, self.outage.away(other)) < self._config.judge.away_s:
            return None
        return self._judge.by_policy(turn_id, error.ballot, only, refuse, policy)

    async def _pause(self, turn_id: str, pause_s: float, error: JudgeUnavailable) -> None:
        """Sleep for ``pause_s``, and for as long as the judge asked for; less where the judge was away and is back."""
        pause_s = max(pause_s, error.retry_after_s or 0.0)
        soonest_s = max(random.uniform(0.5, 1.0) * FIRST_PAUSE_S, error.retry_after_s or 0.0) if error.passing else pause_s
        self._paused.add(turn_id)
        self._on_change()
        try:
            await asyncio.sleep(min(soonest_s, pause_s))
            if soonest_s < pause_s:
                async with asyncio.timeout(pause_s - soonest_s):
                    await self.outage.over.wait()
        except TimeoutError:
            return
        finally:
            self._paused.discard(turn_id)

    def _record(self, judgement: Judgement) -> None:
        self._ledger.add_judgement(judgement)
        self._judge.stats.verdict(judgement)
        self.judged += 1
        self.without_signal += not judgement.has_signal
        self._on_change()

    def _refuse(self, turn: Turn) -> Refuse:
        """Which hints may not be used for this turn, by what is known when it is asked: an answer may be told meanwhile."""
        known_answer = self._ledger.session_facts.known_answer
        return lambda hint: hint_refusal(turn, hint, known_answer(turn.session_id), self._config, self._encode_hint)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task.get_name(), None)
        if not task.cancelled() and (error := task.exception()) is not None:
            # The turn is still in the ledger, and asked about again after a restart.
            log.error("judging_failed", turn=task.get_name(), judging=self._ledger.count(TurnStatus.JUDGING), exc_info=error)
