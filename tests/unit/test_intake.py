"""From a captured turn to its verdict: what takes a place in the batch, and that no vote is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from openclaw_core.config import load_config
from openclaw_core.inspection.reader import LedgerReader, TurnRecord
from openclaw_core.ledger import Ledger, Outcome, TurnStatus
from openclaw_core.loop import judging as module
from openclaw_core.loop.intake import Intake
from openclaw_core.loop.judge_readings import judge_readings
from openclaw_core.loop.samples import judged_at_all
from openclaw_core.types import DropReason, NextState, Question
from tests.judge_parts import COMPLAINT, THANKS, WEATHER, FlakyClient, judge_of
from tests.unit.test_ledger import make_turn

RESULT = NextState("tool", "total 4")
R, H = Question.REWARD, Question.HINT


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FIRST_PAUSE_S", 0.01)


class World:
    """A real ledger and intake, with a judge that fails as a test tells it."""

    def __init__(self, path: Path, grace_s: float = 60, **judge: Any) -> None:
        values = {f"judge.{name}": value for name, value in judge.items()} | {"rollout.reaction_grace_s": grace_s}
        self.config = load_config("local-cpu", values)
        self.path = path / "l.sqlite"
        self.ledger, self.client, self.changes = Ledger(self.path), FlakyClient(), 0
        self.judge = judge_of(self.client, deadline_s=5)
        self.intake = Intake(self.ledger, self.judge, self._changed, self.config, lambda hint: tuple(hint.encode()))

    def _changed(self) -> None:
        self.changes += 1

    def say(self, turn_id: str, state: NextState = COMPLAINT, **turn: Any) -> None:
        """An answer, and what came after it."""
        self.intake.turn(make_turn(turn_id, **turn))
        self.intake.next_state(turn_id, state)

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(5):
            while not condition():
                await self.intake.changed(0.01)

    async def until_ready(self, count: int) -> None:
        await self.until(lambda: self.intake.ready >= count)

    def record(self, turn_id: str) -> TurnRecord:
        with LedgerReader(self.path) as reader:
            return reader.turn(turn_id)


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
    world.say("a", WEATHER)
    await world.until(lambda: not world.intake.judging)
    assert world.intake.ready == 0
    metrics = world.intake.judge.take_metrics()
    assert metrics["rollout/no_signal_rate"] == 1.0
    assert metrics["judge/agreement"] == 1.0
    assert world.intake.judge.take_metrics()["rollout/no_signal_rate"] is None


# A judge that is away


async def test_a_turn_waits_for_a_judge_that_is_away_and_keeps_the_votes_it_has(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.client.faults = {(H, 0): ["error"] * 3, (H, 1): ["error"] * 3}
    world.say("a", THANKS)
    await world.until(lambda: world.intake.judge.unavailable == 1)
    outage = world.intake.judge.outage.describe()
    assert outage is not None and "hint question" in outage and "connection refused" in outage
    await world.until_ready(1)
    assert world.ledger.ready()[0].judgement.reward == 1
    assert [world.client.calls.count((R, n)) for n in range(3)] == [1, 1, 1]
    assert [world.client.calls.count((H, n)) for n in range(3)] == [4, 4, 1]
    assert world.intake.judge.outage.describe() is None
    assert world.intake.judge.take_metrics()["judge/unavailable"] == 3


async def test_a_judge_that_stays_away_is_an_alert_until_it_is_back(tmp_path: Path) -> None:
    world = World(tmp_path, away_s=0.05)
    world.client.always = {R: "error", H: "error"}
    with capture_logs() as logs:
        world.say("a", THANKS)
        await world.until(lambda: any(entry["event"] == "judge_away" for entry in logs))
        status = world.intake.judge.status()
        assert status["away_s"] >= 0.05
        assert "judge_unavailable" in status["alert"] and "judge.unavailable=wait" in status["alert"]
        readings = {reading.name: reading.read() for reading in judge_readings(world.intake.judge)}
        assert readings["openclaw_judge_away_seconds"][""] >= 0.05
        assert readings["openclaw_judge_calls"]["failed"] >= 6
        assert world.intake.judging == 1, "the turn waits; it is no 0"
        world.client.always = {}
        await world.until_ready(1)
    assert world.intake.judge.status() == {"unavailable": 0, "away_s": 0.0, "alert": None}
    told = [(entry["event"], entry["log_level"]) for entry in logs if entry["event"] in ("judge_away", "judge_back")]
    assert told == [("judge_away", "error"), ("judge_back", "info")]


async def test_a_key_that_is_not_accepted_is_an_alert_at_once(tmp_path: Path) -> None:
    world = World(tmp_path, away_s=3600)
    world.client.always = {R: "denied"}
    world.say("a", THANKS)
    await world.until(lambda: world.intake.judge.outage.alert is not None)
    assert "OPENCLAW_JUDGE_API_KEY" in str(world.intake.judge.outage.alert)
    await world.intake.stop()


@pytest.mark.parametrize(
    ("policy", "absent", "reward", "hints"), [("grpo_only", H, -1, 0), ("opd_only", R, 0, 3)], ids=["grpo_only", "opd_only"]
)
async def test_by_policy_one_question_alone_counts_when_the_other_has_been_missing_for_long(
    tmp_path: Path, policy: str, absent: Question, reward: int, hints: int
) -> None:
    world = World(tmp_path, unavailable=policy, away_s=0.05)
    world.client.always = {absent: "error"}
    world.say("a")
    await world.until_ready(1)
    (judged,) = world.ledger.ready()
    assert (judged.judgement.reward, len(judged.judgement.hints), judged.judgement.policy) == (reward, hints, policy)
    assert [vote.value for vote in judged.judgement.votes if vote.question is absent] == [None] * 3


@pytest.mark.parametrize(
    ("policy", "absent"), [("wait", H), ("wait", R), ("grpo_only", R), ("opd_only", H)], ids=lambda value: str(value)
)
async def test_the_question_that_the_policy_counts_is_waited_for(tmp_path: Path, policy: str, absent: Question) -> None:
    world = World(tmp_path, unavailable=policy, away_s=0.01)
    world.client.always = {absent: "error"}
    world.say("a")
    await world.until(lambda: world.client.calls.count((absent, 0)) > 3)
    assert (world.intake.judging, world.intake.ready) == (1, 0)
    await world.intake.stop()
    assert world.client.closed


async def test_votes_that_were_outstanding_are_asked_for_after_a_restart(tmp_path: Path) -> None:
    before = World(tmp_path)
    before.client.always = {R: "error"}
    before.say("a", THANKS)
    await before.until(lambda: before.intake.judge.unavailable == 1)
    await before.intake.stop()
    before.ledger.close()
    world = World(tmp_path)
    world.intake.resume()
    await world.until_ready(1)
    assert world.ledger.count(TurnStatus.READY) == 1


async def test_a_turn_that_does_not_fit_the_judge_is_dropped_with_its_reason(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.client.always = {H: "too long"}
    world.say("a")
    await world.until(lambda: not world.intake.judging)
    assert world.record("a").drop_reason == DropReason.JUDGE_OVERFLOW
    assert world.ledger.drops(1) == {"judge_overflow": 1}


async def test_many_turns_are_read_from_the_ledger_only_when_it_is_their_turn(tmp_path: Path) -> None:
    world = World(tmp_path, max_concurrent=2)
    world.client.gate.clear()
    for n in range(6):
        world.say(f"t{n}", THANKS, session_id=f"s{n}")
    await asyncio.sleep(0.05)
    assert len(world.client.calls) == 2 * 6, "two turns, six votes each"
    world.client.gate.set()
    await world.until_ready(6)


# Known answers


async def test_a_hint_that_quotes_the_known_answer_is_refused_also_after_a_restart(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.ledger.add_outcome(Outcome("s1", "teacher", True, False, True, 1, ground_truth="great question"), step=1)
    world.ledger.close()
    world = World(tmp_path)
    world.say("a")
    await world.until_ready(1)
    judgement = world.ledger.ready()[0].judgement
    assert len(judgement.hints) == 1
    assert [reason for _, reason in judgement.refused] == ["quotes_answer"] * 2
    assert world.record("a").judgement == judgement
    assert world.intake.judge.take_metrics()["judge/hints_refused"] == {"quotes_answer": 2}


async def test_an_answer_that_is_told_after_the_verdict_still_refuses_hints_that_are_in_no_batch_yet(tmp_path: Path) -> None:
    world = World(tmp_path)
    for turn_id in ("batched", "ready"):
        world.say(turn_id)
        await world.until_ready(1)
        if turn_id == "batched":
            world.ledger.open_step(1, ["batched"])
    world.ledger.add_outcome(Outcome("s1", "teacher", True, False, True, 1, ground_truth="great question"), step=2)
    world.intake.known_answer("s1")
    (ready,), (batched,) = world.ledger.ready(), world.ledger.turns(["batched"])
    assert (len(ready.judgement.hints), len(batched.judgement.hints)) == (1, 3)
    assert world.intake.judge.take_metrics()["judge/hints_refused"] == {"quotes_answer": 2}


async def test_an_answer_that_is_told_while_the_judge_writes_counts(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.client.gate.clear()
    world.say("a")
    await world.until(lambda: world.client.busy == 6)
    world.ledger.add_outcome(Outcome("s1", "teacher", True, False, True, 1, ground_truth="great question"), step=1)
    world.intake.known_answer("s1")
    world.client.gate.set()
    await world.until_ready(1)
    assert len(world.ledger.ready()[0].judgement.hints) == 1


async def test_a_turn_that_loses_its_only_signal_to_the_known_answer_fills_no_place(tmp_path: Path) -> None:
    world = World(tmp_path, unavailable="opd_only", away_s=0.01)
    world.client.always = {R: "error"}
    world.say("a")
    await world.until_ready(1)
    world.ledger.add_outcome(Outcome("s1", "teacher", True, False, True, 1, ground_truth="friend"), step=1)
    world.intake.known_answer("s1")
    record = world.record("a")
    assert record.judgement is not None
    assert (world.intake.ready, record.status, record.judgement.hints) == (0, TurnStatus.NO_SIGNAL, ())
    await world.intake.stop()


# Tool turns and loops


@pytest.mark.parametrize(("handling", "judged"), [("score", True), ("skip", False)])
async def test_tool_turns_are_judged_or_left_out(tmp_path: Path, handling: str, judged: bool) -> None:
    world = World(tmp_path, tool_turns=handling)
    world.say("tool", RESULT)
    world.say("user", THANKS, index=1)
    await world.until(lambda: not world.intake.judging)
    assert world.record("user").status == TurnStatus.READY
    record = world.record("tool")
    assert (record.status, record.drop_reason) == (("no_signal", None) if judged else ("dropped", DropReason.TOOL_TURN))
    assert record.next_state == RESULT
    assert world.ledger.drops(1) == ({} if judged else {"tool_turn": 1})


def test_a_subsample_of_tool_turns_is_told_by_their_ids() -> None:
    judge = load_config("local-cpu", {"judge.tool_turns": "subsample", "judge.tool_turn_share": 0.25}).judge
    kept = [n for n in range(4000) if judged_at_all(f"turn-{n}", RESULT, judge)]
    assert 850 < len(kept) < 1150
    assert kept == [n for n in range(4000) if judged_at_all(f"turn-{n}", RESULT, judge)]
    assert all(judged_at_all(f"turn-{n}", THANKS, judge) for n in range(50))


def called(name: str, arguments: str) -> dict[str, Any]:
    call = {"id": "call_1", "type": "function", "function": {"name": name, "arguments": arguments}}
    return {"tool_calls": (call,), "answer": "Let me look."}


LOOPS = [
    [{"answer": "Sure."}, {"answer": " sure. "}, {"answer": "SURE."}],
    [called("ls", '{"a":1,"b":2}'), called("ls", '{"b": 2, "a": 1}'), called("ls", '{"a": 1, "b": 2}')],
    [{"answer": ""}, {"answer": ""}, {"answer": " "}],
]
NO_LOOPS = [
    [{"answer": "Sure."}, {"answer": "No."}, {"answer": "Sure."}],
    [called("ls", '{"a": 1}'), called("ls", '{"a": 2}'), called("ls", '{"a": 1}')],
    [called("ls", "{}"), {"answer": "Let me look."}, called("ls", "{}")],
]


@pytest.mark.parametrize("turns", LOOPS)
async def test_the_third_repetition_keeps_a_session_out_of_training_from_there_on(tmp_path: Path, turns: Any) -> None:
    world = World(tmp_path)
    for index, turn in enumerate(turns[:2]):
        world.say(f"t{index}", THANKS, index=index, **turn)
    await world.until_ready(2)
    world.ledger.open_step(1, ["t0"])
    world.intake.turn(make_turn("t2", index=2, **turns[2]))
    assert world.record("t1").drop_reason == DropReason.LOOP
    assert world.record("t0").status == TurnStatus.BATCHED, "what is in a batch stays there"
    assert world.intake.expected == 0, "it takes no place"
    world.intake.next_state("t2", THANKS)
    world.ledger.close()
    world = World(tmp_path)  # a restart forgets nothing
    world.say("t3", THANKS, index=3, answer="Something else.")
    world.say("other", THANKS, session_id="s2", answer="Something else.")
    await world.until_ready(1)
    assert [world.record(turn_id).drop_reason for turn_id in ("t2", "t3", "other")] == ["loop", "loop", None]
    assert world.ledger.drops(1) == {"loop": 3}


@pytest.mark.parametrize("turns", NO_LOOPS)
async def test_what_is_not_the_same_in_a_row_is_no_loop(tmp_path: Path, turns: Any) -> None:
    world = World(tmp_path)
    for index, turn in enumerate(turns):
        world.say(f"t{index}", THANKS, index=index, **turn)
    await world.until_ready(3)


async def test_asking_the_same_thing_again_is_the_clients_doing_and_no_loop(tmp_path: Path) -> None:
    world = World(tmp_path)
    for n in range(4):
        world.say(f"t{n}", THANKS, index=0, answer="Sure.")
    await world.until_ready(4)


async def test_votes_of_a_session_that_begins_to_loop_are_wanted_no_more(tmp_path: Path) -> None:
    world = World(tmp_path, loop_repeats=2)
    world.client.gate.clear()
    world.say("t0", THANKS, index=0)
    await asyncio.sleep(0.01)
    world.intake.turn(make_turn("t1", index=1))
    world.client.gate.set()
    await asyncio.sleep(0.05)
    assert world.record("t0").drop_reason == DropReason.LOOP
    assert (world.intake.judging, world.intake.ready) == (0, 0)
