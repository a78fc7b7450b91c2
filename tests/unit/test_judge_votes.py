"""Votes with deadline, retries and a quorum: which are asked for again, which are kept, and what is never a silent 0."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from openclaw_core.judge import JudgeOverflow, JudgeReply, JudgeUnavailable, ScriptedJudge
from openclaw_core.judge.stats import percentile
from openclaw_core.types import HintRefusal, NextState, Question
from tests.judge_parts import COMPLAINT, THANKS, TURN, FlakyClient, judge_of

R, H = Question.REWARD, Question.HINT


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("openclaw_core.judge.judge.FIRST_WAIT_S", 0.001)


@pytest.mark.parametrize("fault", ["error", "hang", "later"])
async def test_vote_that_fails_is_asked_again(fault: str) -> None:
    client = FlakyClient({(R, 0): [fault], (H, 2): [fault]})
    judgement = await judge_of(client, retries=1).judge(TURN, COMPLAINT)
    assert len(client.calls) == 8
    assert [vote.value for vote in judgement.votes] == [-1, -1, -1, 1, 1, 1]


@pytest.mark.parametrize("fault", ["error", "hang", "nonsense", "refused", "cut"])
async def test_one_lost_vote_leaves_a_verdict_and_is_recorded_as_no_vote(fault: str) -> None:
    client = FlakyClient({(R, 1): [fault]})
    judgement = await judge_of(client).judge(TURN, THANKS)
    assert judgement.reward == 1
    assert [vote.value for vote in judgement.votes[:3]] == [1, None, 1]
    assert judgement.votes[1].raw


@pytest.mark.parametrize("question", list(Question))
@pytest.mark.parametrize("fault", ["error", "hang", "nonsense", "cut"])
async def test_too_few_votes_on_either_question_are_never_a_silent_zero(question: Question, fault: str) -> None:
    client = FlakyClient({(question, 0): [fault] * 9, (question, 1): [fault] * 9})
    with pytest.raises(JudgeUnavailable, match=f"turn-1: {question} question: 1 valid of 3") as raised:
        await judge_of(client, retries=1).judge(TURN, THANKS)
    assert raised.value.missing == (question,)


@pytest.mark.parametrize("question", list(Question))
async def test_only_the_missing_votes_of_the_missing_question_are_asked_again(question: Question) -> None:
    client = FlakyClient({(question, 0): ["error"], (question, 2): ["nonsense"]})
    judge = judge_of(client)
    with pytest.raises(JudgeUnavailable) as raised:
        await judge.judge(TURN, COMPLAINT)
    client.calls.clear()
    judgement = await judge.judge(TURN, COMPLAINT, kept=raised.value.ballot)
    assert client.calls == [(question, 0), (question, 2)]
    assert [vote.value for vote in judgement.votes] == [-1, -1, -1, 1, 1, 1]


@pytest.mark.parametrize(("fault", "denied"), [("refused", False), ("denied", True)])
async def test_a_refusal_is_not_asked_again_and_says_what_to_mend(fault: str, denied: bool) -> None:
    client = FlakyClient()
    client.always = {R: fault}
    with pytest.raises(JudgeUnavailable, match="OPENCLAW_JUDGE_API_KEY" if denied else "no such model") as raised:
        await judge_of(client, retries=5).judge(TURN, THANKS)
    assert client.calls.count((R, 0)) == 1
    assert (raised.value.denied, raised.value.passing) == (denied, False)


async def test_a_judge_that_wants_to_be_left_alone_for_long_is_not_asked_again_before() -> None:
    client = FlakyClient()
    client.always = {H: "much later"}
    with pytest.raises(JudgeUnavailable) as raised:
        await judge_of(client, retries=5).judge(TURN, THANKS)
    assert client.calls.count((H, 0)) == 1
    assert raised.value.retry_after_s == 3600
    assert raised.value.passing


async def test_a_turn_that_does_not_fit_the_judge_is_told_apart_from_a_judge_that_is_away() -> None:
    client = FlakyClient({(H, 1): ["too long"]})
    with pytest.raises(JudgeOverflow):
        await judge_of(client).judge(TURN, THANKS)


async def test_all_votes_of_a_turn_are_asked_at_once() -> None:
    everyone_is_here = asyncio.Barrier(6)

    class PatientClient(ScriptedJudge):
        async def vote(self, question: Question, answer: str, next_state: NextState, vote_index: int) -> JudgeReply:
            await everyone_is_here.wait()
            return await super().vote(question, answer, next_state, vote_index)

    assert (await judge_of(PatientClient(), deadline_s=5).judge(TURN, THANKS)).reward == 1


async def test_calls_are_limited_over_all_turns_and_waiting_is_not_part_of_a_deadline() -> None:
    client = FlakyClient()
    judge = judge_of(client, max_concurrent=2, deadline_s=0.3)
    client.gate.clear()
    turns = [asyncio.create_task(judge.judge(TURN, THANKS)) for _ in range(4)]
    await asyncio.sleep(0.2)
    assert client.busy == 2
    client.gate.set()
    assert [judgement.reward for judgement in await asyncio.gather(*turns)] == [1] * 4
    assert client.most_busy == 2
    assert judge.stats.total.failed == 0


async def test_a_judgement_says_who_judged_with_what_and_at_what_cost() -> None:
    judgement = await judge_of(FlakyClient()).judge(TURN, COMPLAINT)
    assert (judgement.model, judgement.prompt_version, judgement.policy) == ("flaky", "flaky 1", "")
    assert all(vote.seconds is not None and vote.seconds >= 0 for vote in judgement.votes)
    assert {(vote.prompt_tokens, vote.completion_tokens) for vote in judgement.votes} == {(10, 3)}


async def test_refused_hints_are_kept_in_the_judgement_with_their_reason() -> None:
    judge = judge_of(FlakyClient())
    free = await judge.judge(TURN, COMPLAINT)
    first = free.hints[0]
    held = await judge.judge(TURN, COMPLAINT, refuse=lambda hint: HintRefusal.QUOTES_ANSWER if hint == first else None)
    assert held.hints == free.hints[1:]
    assert held.refused == ((first, "quotes_answer"),)
    assert judge.choose_again(held, lambda hint: None).hints == free.hints


async def test_what_is_counted_is_what_happened() -> None:
    client = FlakyClient({(R, 0): ["error"], (R, 1): ["cut"], (H, 0): ["nonsense"]})
    judge = judge_of(client, votes=5)
    judge.stats.verdict(await judge.judge(TURN, COMPLAINT))
    metrics: dict[str, Any] = judge.stats.take()
    assert metrics["judge/failed_calls"] == 1
    assert metrics["judge/parse_failure_share"] == 2 / 9
    assert (metrics["judge/prompt_tokens"], metrics["judge/completion_tokens"]) == (7 + 7 * 10, 5 + 7 * 3)
    assert metrics["judge/agreement"] == 1.0
    assert metrics["judge/latency_s"] <= metrics["judge/latency_p95_s"]
    again = judge.stats.take()
    assert (again["judge/latency_s"], again["judge/agreement"], again["judge/failed_calls"]) == (None, None, 0)
    assert judge.stats.total.answered == 9


@pytest.mark.parametrize(("values", "p95"), [([], None), ([3.0], 3.0), ([float(n) for n in range(100, 0, -1)], 95.0)])
def test_percentile_is_the_smallest_value_that_so_many_do_not_exceed(values: list[float], p95: float | None) -> None:
    assert percentile(values, 0.95) == p95
