"""From a captured turn to its verdict: what takes a place in the batch, and that no vote is lost."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from openclaw_core.judge import Judge, JudgeError, ScriptedJudge
from openclaw_core.ledger import Ledger, TurnStatus
from openclaw_core.loop import intake as module
from openclaw_core.loop.intake import Intake
from openclaw_core.types import NextState, Question
from tests.unit.test_ledger import make_turn

THANKS, COMPLAINT, WEATHER = (NextState("user", text) for text in ("Thanks!", "That sounds cold.", "It rains."))


class FailsFirst(ScriptedJudge):
    """A judge that is away for its first calls."""

    failures = 0

    async def vote(self, question: Question, answer: str, next_state: NextState, vote_index: int) -> str:
        if self.failures > 0:
            self.failures -= 1
            raise JudgeError("the judge is away")
        return await super().vote(question, answer, next_state, vote_index)


class World:
    def __init__(self, path: Path, grace_s: float = 60) -> None:
        self.ledger, self.client, self.changes = Ledger(path / "l.sqlite"), FailsFirst(), 0
        judge = Judge(self.client, votes=3, min_hint_chars=11, max_candidates=3, deadline_s=5, retries=0)
        self.intake = Intake(self.ledger, judge, self._changed, grace_s)

    def _changed(self) -> None:
        self.changes += 1

    async def until_ready(self, count: int) -> None:
        async with asyncio.timeout(5):
            while self.intake.ready < count:
                await self.intake.changed(0.1)


async def test_an_answer_keeps_its_place_from_capture_to_verdict(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.intake.turn(make_turn("a"))
    assert (world.intake.expected, world.intake.judging, world.intake.ready) == (1, 0, 0)
    world.intake.next_state("a", COMPLAINT)
    assert (world.intake.expected, world.intake.judging, world.intake.ready) == (0, 1, 0)
    await world.until_ready(1)
    assert (world.intake.expected, world.intake.judging, world.intake.ready) == (0, 0, 1)
    verdict = world.ledger.ready()[0].judgement
    assert verdict.reward == -1
    assert len(verdict.hints) == 3


async def test_an_answer_that_nobody_reacts_to_gives_its_place_away(tmp_path: Path) -> None:
    world = World(tmp_path, grace_s=0.01)
    world.intake.turn(make_turn("a"))
    before = world.changes
    await asyncio.sleep(0.05)
    assert world.intake.expected == 0
    assert world.changes > before  # whoever waits for admission is told
    world.intake.next_state("a", THANKS)  # a late reaction still counts
    await world.until_ready(1)


async def test_a_reaction_without_a_signal_frees_the_place(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.intake.turn(make_turn("a"))
    world.intake.next_state("a", WEATHER)
    async with asyncio.timeout(5):
        while world.intake.judging:
            await world.intake.changed(0.1)
    assert world.intake.ready == 0
    assert (world.intake.judged, world.intake.without_signal) == (1, 1)


async def test_a_turn_waits_for_a_judge_that_is_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "JUDGE_RETRY_S", 0.01)
    world = World(tmp_path)
    world.client.failures = 6
    world.intake.turn(make_turn("a"))
    world.intake.next_state("a", THANKS)
    await world.until_ready(1)
    assert world.ledger.ready()[0].judgement.reward == 1


async def test_votes_that_were_outstanding_are_asked_for_after_a_restart(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "l.sqlite")
    ledger.add_turn(make_turn("a"))
    ledger.set_next_state("a", THANKS)
    world = World(tmp_path)
    world.intake.resume()
    await world.until_ready(1)
    assert world.ledger.count(TurnStatus.READY) == 1
