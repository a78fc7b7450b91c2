"""The feeder against the real gateway over HTTP."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from openclaw_core.feeder import FeederError, FeederSummary, load_personas, run_feeder, training_problems
from openclaw_core.types import NextState, Turn
from tests.gateway_world import API_KEY, CONTROL_TOKEN, Script, World, build_world
from tests.models import tiny_llama

STUDENT, TA, TEACHER = load_personas("local", ["student", "ta", "teacher"])
LIST = "1. First add\n2. Then stop"


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("model"))


@pytest.fixture(autouse=True)
def quick_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("openclaw_core.feeder.feeder.POLL_S", 0.05)


@pytest.fixture
def build(model_dir: Path) -> Callable[..., World]:
    small = {"feeder.sessions_in_flight": 3, "rollout.max_response_tokens": 400, "model.context_length": 2000}
    return lambda script, **overrides: build_world(model_dir, script, small | overrides)


def pleases_all(prompt: str) -> str:
    """Meets every persona's rules: it is long and warm, in one paragraph, and repeats the question."""
    question = re.findall(r"(?:homework question\.|Question:|student asked:) (.+)", prompt)[0]
    return f"Let's look at it together, and you can see that it goes like this: {question} " * 2


def pleases_on_second_try(prompt: str) -> str:
    return pleases_all(prompt) if prompt.count("<|im_start|>user") > 1 else LIST


def feed(world: World, stop: asyncio.Event, api_key: str = API_KEY, token: str = CONTROL_TOKEN) -> Any:
    return run_feeder(world.config, world.gateway_url, api_key, world.control_url, token, stop)


@asynccontextmanager
async def feeding(world: World) -> AsyncIterator[asyncio.Task[FeederSummary]]:
    """A feeder that is stopped at the end of the block."""
    stop = asyncio.Event()
    task = asyncio.create_task(feed(world, stop))
    try:
        yield task
    finally:
        stop.set()
        await asyncio.wait_for(task, 20)


def conversations(world: World) -> dict[str, list[Turn]]:
    """The captured turns of every session that is over: its person is satisfied or has no turn left, and was heard."""
    turns, heard = _by_session(world.of("turn")), _by_session(world.of("next_state"))
    satisfied = {session for session, outcome in world.of("outcome") if outcome["satisfied"]}
    return {
        session: captured
        for session, captured in turns.items()
        if len(heard.get(session, [])) == len(captured)
        and (session in satisfied or len(captured) == world.config.feeder.max_turns)
    }


def _by_session(entries: list[tuple[str, Any]]) -> dict[str, list[Any]]:
    grouped: dict[str, list[Any]] = {}
    for session, details in entries:
        grouped.setdefault(session, []).append(details)
    return grouped


def chains(world: World) -> list[list[list[Turn]]]:
    """Finished sessions grouped by problem, in the order in which they were held."""
    by_problem: dict[str, list[list[Turn]]] = {}
    for session, turns in conversations(world).items():
        by_problem.setdefault(session.split("-", 1)[1], []).append(turns)
    return [sessions for sessions in by_problem.values() if len(sessions) == 3]


@pytest.mark.parametrize(
    ("script", "turns"),
    [(pleases_all, 1), (pleases_on_second_try, 2), (lambda prompt: LIST, 2)],
    ids=["first", "second", "never"],
)
async def test_task_is_a_chain_in_which_each_persona_quotes_the_last_answer_before(
    build: Callable[..., World], script: Script, turns: int
) -> None:
    world = build(script)
    async with world.serving(), feeding(world):
        await world.until(lambda: len(chains(world)) >= 4)
    questions = {problem.question for problem in islice(training_problems(world.config), 40)}
    for student, ta, teacher in chains(world):
        assert [len(session) for session in (student, ta, teacher)] == [turns] * 3
        opening = student[0].messages[0]["content"]
        question = re.fullmatch(r"I have a homework question\. (.+) How do I solve it\?", opening)[1]
        assert question in questions
        assert ta[0].messages[0]["content"] == TA.open(question, student[-1].answer, 20)
        assert teacher[0].messages[0]["content"] == TEACHER.open(question, ta[-1].answer, 20)


async def test_complaint_is_the_next_message_and_thanks_close_the_session(build: Callable[..., World]) -> None:
    world = build(pleases_on_second_try)
    async with world.serving(), feeding(world):
        await world.until(lambda: len(chains(world)) >= 3)
    done = conversations(world)
    states = {session: [state for owner, state in world.of("next_state") if owner == session] for session in done}
    for session, (first, second) in done.items():
        persona = next(one for one in (STUDENT, TA, TEACHER) if session.startswith(f"{one.name}-"))
        complaint, thanks = states[session]
        assert complaint == NextState("user", second.messages[-1]["content"])
        assert any(text in complaint.text for text in persona.complaints.style + persona.complaints.relevance)
        assert [message["role"] for message in second.messages] == ["user", "assistant", "user"]
        assert second.messages[1]["content"] == first.answer
        assert thanks.text in persona.thanks


async def test_person_who_is_never_satisfied_leaves_with_a_complaint(build: Callable[..., World]) -> None:
    world = build(lambda prompt: LIST, **{"feeder.max_turns": 3})
    async with world.serving(), feeding(world):
        await world.until(lambda: len(conversations(world)) >= 3)
    for session, turns in conversations(world).items():
        last = [state for owner, state in world.of("next_state") if owner == session][-1]
        assert len(turns) == 3
        assert not any(last.text in persona.thanks for persona in (STUDENT, TA, TEACHER))


async def test_outcome_of_each_answer_is_reported_before_the_reaction_is_sent(build: Callable[..., World]) -> None:
    world = build(pleases_on_second_try)
    async with world.serving(), feeding(world):
        await world.until(lambda: len(conversations(world)) >= 6)
    for session in conversations(world):
        kinds = [kind for kind, owner, _ in world.journal if owner == session]
        assert kinds == ["turn", "outcome", "next_state"] * 2
        persona = session.split("-")[0]
        first, second = [outcome for owner, outcome in world.of("outcome") if owner == session]
        assert first.pop("ground_truth") == second.pop("ground_truth")
        problem = int(session.split("-")[4]) + 1
        assert first == {"persona": persona, "satisfied": False, "relevant": False, "first": True, "problem": problem}
        assert second == {"persona": persona, "satisfied": True, "relevant": True, "first": False, "problem": problem}


async def test_number_of_sessions_in_flight_is_kept(build: Callable[..., World]) -> None:
    world = build(pleases_all, **{"feeder.sessions_in_flight": 5})
    async with world.serving(), feeding(world):
        await world.until(lambda: len(conversations(world)) >= 15)
        world.engine.gate.clear()
        await world.until(lambda: world.engine.busy == 5)
        await asyncio.sleep(0.3)
        world.engine.gate.set()
    assert world.engine.most_busy == 5
    sessions = [session for session, _ in world.of("turn")]
    assert len(sessions) == len(set(sessions))


async def test_first_tasks_start_in_waves_so_that_personas_mix(build: Callable[..., World]) -> None:
    world = build(pleases_all, **{"feeder.sessions_in_flight": 6})
    world.engine.gate.clear()
    async with world.serving(), feeding(world):
        await world.until(lambda: len(world.engine.requests) == 2)
        await asyncio.sleep(0.3)
        assert world.engine.busy == 2
        world.engine.gate.set()
        await world.until(lambda: len(conversations(world)) >= 12)
    order = [session.split("-")[0] for session, _ in world.of("turn")]
    assert set(order[:6]) == {"student", "ta"}
    assert set(order[:12]) == {"student", "ta", "teacher"}


async def test_feeder_waits_for_a_gateway_that_starts_late_or_goes_away(build: Callable[..., World]) -> None:
    world = build(pleases_all)
    async with world.serving_control(), feeding(world):
        await asyncio.sleep(0.3)
        for wanted in (3, 6):
            async with world.serving_gateway():
                await world.until(lambda wanted=wanted: len(conversations(world)) >= wanted)


async def test_full_waiting_room_and_failing_engine_are_tried_again(build: Callable[..., World], monkeypatch) -> None:
    monkeypatch.setattr("openclaw_core.gateway.errors.RETRY_AFTER_S", 1)
    world = build(pleases_all, **{"rollout.hold_max_s": 0.2})
    world.room.pause()
    world.engine.failures = 2
    async with world.serving(), feeding(world) as feeder:
        await asyncio.sleep(1)
        assert not world.engine.requests
        world.room.resume()
        await world.until(lambda: len(conversations(world)) >= 3)
    assert feeder.result().failures == 0


async def test_failed_task_is_left_and_the_feeder_goes_on(build: Callable[..., World], monkeypatch) -> None:
    """The later personas' longer prompts do not fit into this context, so most tasks break off."""
    monkeypatch.setattr("openclaw_core.feeder.feeder.LONGEST_PAUSE_S", 0.01)
    small = {"model.context_length": 190, "rollout.max_response_tokens": 100, "feeder.max_turns": 1}
    world = build(lambda prompt: "word " * 70, **small)
    async with world.serving(), feeding(world) as feeder:
        await world.until(lambda: len({session for session, _ in world.of("turn") if session.startswith("student")}) >= 9)
    assert feeder.result().failures >= 4


async def test_stop_ends_the_feeder_at_once_even_while_requests_are_held(build: Callable[..., World]) -> None:
    world = build(pleases_all)
    world.engine.gate.clear()
    stop = asyncio.Event()
    async with world.serving():
        task = asyncio.create_task(feed(world, stop))
        await world.until(lambda: world.engine.busy > 0)
        stop.set()
        summary = await asyncio.wait_for(task, 10)
        world.engine.gate.set()
    assert (summary.ended, summary.turns) == ("stopped", 0)


async def test_stop_is_heard_while_the_service_is_not_there_yet(build: Callable[..., World]) -> None:
    world, stop = build(pleases_all), asyncio.Event()
    task = asyncio.create_task(feed(world, stop))
    await asyncio.sleep(0.2)
    stop.set()
    assert (await asyncio.wait_for(task, 10)).ended == "stopped"


async def test_feeder_begins_when_the_service_is_ready_and_ends_when_it_has_finished(build: Callable[..., World]) -> None:
    world = build(pleases_on_second_try)
    world.state = "starting"
    async with world.serving():
        task = asyncio.create_task(feed(world, asyncio.Event()))
        await asyncio.sleep(0.3)
        assert not world.journal
        world.state = "ready"
        await world.until(lambda: len(conversations(world)) >= 6)
        world.state = "finished"
        summary = await asyncio.wait_for(task, 20)
    assert summary.ended == "finished"
    assert summary.satisfied == summary.sessions >= 6
    assert summary.turns >= 2 * summary.sessions


async def test_feeder_of_a_resumed_run_brings_new_problems_and_new_sessions(build: Callable[..., World]) -> None:
    world = build(pleases_all)
    async with world.serving():
        async with feeding(world):
            await world.until(lambda: len(chains(world)) >= 2)
        before = {session: turns[0].messages[0]["content"] for session, turns in conversations(world).items()}
        world.problems = 48
        async with feeding(world):
            await world.until(lambda: len(conversations(world)) >= len(before) + 6)
    after = {
        session: turns[0].messages[0]["content"] for session, turns in conversations(world).items() if session not in before
    }
    assert set(before.values()).isdisjoint(after.values())
    assert min(int(session.split("-")[4]) for session in after) == 48


@pytest.mark.parametrize(
    ("keys", "complaint"),
    [({"api_key": "wrong"}, "refused: Error code: 401.*API key"), ({"token": "wrong"}, "refused with 401.*wrong token")],
)
async def test_wrong_key_ends_the_feeder_with_an_error(
    build: Callable[..., World], keys: dict[str, str], complaint: str
) -> None:
    world = build(pleases_all)
    async with world.serving():
        with pytest.raises(FeederError, match=complaint):
            await asyncio.wait_for(feed(world, asyncio.Event(), **keys), 30)


async def test_service_that_stays_away_is_an_error_that_names_it(build: Callable[..., World]) -> None:
    world = build(pleases_all, **{"rollout.hold_max_s": 0.5, "cluster.start_deadline_s": 0.5})
    with pytest.raises(FeederError, match=f"service at {world.control_url} was not there for 1 s"):
        await asyncio.wait_for(feed(world, asyncio.Event()), 30)
