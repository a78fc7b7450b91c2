"""Personas that a model plays: the model is reached over HTTP, behind our own gateway with an engine that follows a script."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from openclaw_core.feeder import FeederError, PersonaError, feed_gateway, load_personas, run_feeder
from openclaw_core.feeder.errors import TaskFailed
from openclaw_core.feeder.openai_simulator import PlayedPersona, SimulatorModel, leaked, system_prompt
from openclaw_core.feeder.problems import Problem
from tests.gateway_world import API_KEY, CONTROL_TOKEN, World, build_world
from tests.models import tiny_llama

STUDENT, TA, TEACHER = load_personas("homework", ["student", "ta", "teacher"])
PROBLEM = Problem("p", "Ann has 7 pens and buys 12 more. How many pens has she?", "19", 1)
GOOD = "Ann has 7 pens at first and then she buys 12 more pens, so in the end she has got all of these pens in her bag."


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("model"))


@pytest.fixture
def player(model_dir: Path) -> Callable[..., World]:
    """A world whose model plays people; ``says``: its messages in order, or what it makes of a prompt."""

    def build(says: list[str] | Callable[[str], str], **overrides: Any) -> World:
        left = iter(says) if isinstance(says, list) else None
        script = says if callable(says) else lambda prompt: next(left)
        room = {"rollout.max_response_tokens": 3000, "model.context_length": 8000}
        return build_world(model_dir, script, room | overrides)

    return build


def model(world: World, key: str = API_KEY, **feeder: Any) -> SimulatorModel:
    fields = {"simulator_url": world.gateway_url, "simulator_model": world.config.model.name, "simulator_max_tokens": 3000}
    return SimulatorModel(world.config.feeder.model_copy(update=fields | feeder), key)


def play(world: World, persona=STUDENT, problem: Problem = PROBLEM, **options: Any) -> PlayedPersona:
    return PlayedPersona(persona, problem, persona.open(problem.question, "", 20), model(world, **options))


def prompts(world: World) -> list[str]:
    return [world.engine.text(request) for request in world.engine.requests]


async def test_the_course_is_the_sentinels_and_the_metrics_are_the_rules(player: Callable[..., World]) -> None:
    world = player(["This looks like a machine's.", "Hm, not yet.", "Great, thanks! HOMEWORK_DONE"])
    async with world.serving():
        person = play(world)
        assert await person.first() == STUDENT.open(PROBLEM.question, "", 20)
        marked, liked, done = [await person.react(answer) for answer in ("1. **Add**", GOOD, "No.")]
    assert (marked.satisfied, marked.relevant, marked.done, marked.message) == (
        False,
        False,
        False,
        "This looks like a machine's.",
    )
    assert (liked.satisfied, liked.relevant, liked.done) == (True, True, False)
    assert (done.satisfied, done.done, done.message) == (False, True, "Great, thanks! HOMEWORK_DONE")


async def test_the_model_is_told_the_persona_and_the_conversation_from_the_persons_side(player: Callable[..., World]) -> None:
    world = player(["Try again please.", "Thanks. HOMEWORK_DONE"])
    async with world.serving():
        person = play(world)
        for answer in ("First answer.", "Second answer."):
            await person.react(answer)
    last = prompts(world)[-1]
    for text in (STUDENT.description, STUDENT.preference, PROBLEM.question, *STUDENT.complaints.style, *STUDENT.conduct):
        assert text in last
    roles = re.findall(r"<\|im_start\|>(\w+)", last)
    assert roles == ["system", "user", "assistant", "user", "assistant", "user", "assistant"]
    assert last.index("First answer.") < last.index("Try again please.") < last.index("Second answer.")
    assert not any("19" in prompt for prompt in prompts(world))


@pytest.mark.parametrize("persona", load_personas("homework-zh", ["student", "ta", "teacher"]), ids=lambda it: it.name)
def test_a_chinese_persona_is_told_in_chinese(persona) -> None:
    told = system_prompt(persona, "小明有7支铅笔。")
    assert persona.sentinel in told and "小明有7支铅笔。" in told and "绝不" in told
    assert not re.search(r"\{|You ", told)


@pytest.mark.parametrize(
    ("bad", "fault"),
    [
        ("But is it not 19?", "gives away 19"),
        ("I got nineteen.", "gives away 19"),
        ("", "it is empty"),
        ("<think>They want", "it is empty"),
    ],
)
async def test_a_message_that_cannot_be_sent_is_asked_for_once_more(player: Callable[..., World], bad: str, fault: str) -> None:
    world = player([bad, "<think>Be brief.</think>\n\nI don't like it.", "Fine. HOMEWORK_DONE"])
    async with world.serving():
        person = play(world)
        assert (await person.react("Answer.")).message == "I don't like it."
        assert fault in prompts(world)[1]
        await person.react("Another answer.")
    assert fault not in prompts(world)[2], "the conversation goes on without the message that was not sent"


async def test_a_model_that_does_it_twice_fails_the_task_with_the_reason(player: Callable[..., World]) -> None:
    world = player(["19!", "OK: 19."])
    async with world.serving():
        with pytest.raises(
            TaskFailed, match=r"plays student twice wrote what cannot be sent; now it gives away 19.*: 'OK: 19\.'"
        ):
            await play(world).react("Answer.")


@pytest.mark.parametrize(
    ("text", "answer", "told"),
    [
        ("It is 19.", "19", {"19"}),
        ("It is 1,250 dollars", "1250", {"1250"}),
        ("I have 7 pens", "7", set()),
        ("Just one more thing", "1", set()),
        ("So 1?", "1", {"1"}),
        ("是十九吗", "19", {"19"}),
        ("Thanks", "19", set()),
    ],
)
def test_what_gives_the_answer_away(text: str, answer: str, told: set[str]) -> None:
    assert leaked(text, PROBLEM.question, answer) == told


async def test_an_api_that_is_full_or_fails_is_asked_again(player: Callable[..., World], monkeypatch) -> None:
    monkeypatch.setattr("openclaw_core.gateway.errors.RETRY_AFTER_S", 0)
    world = player(lambda prompt: "Try again.")
    world.engine.failures = 2
    async with world.serving():
        assert (await play(world).react("Answer.")).message == "Try again."
    assert len(world.engine.requests) == 3


@pytest.mark.parametrize(
    ("options", "error", "complaint"),
    [
        ({"key": "wrong"}, FeederError, "simulator request to .* was refused: Error code: 401"),
        ({"simulator_model": "other"}, TaskFailed, "The model `other` does not exist here"),
    ],
)
async def test_a_refusal_is_said_plainly(player: Callable[..., World], options, error, complaint: str) -> None:
    world = player(["unused"])
    async with world.serving():
        with pytest.raises(error, match=complaint):
            await play(world, **options).react("Answer.")


async def test_an_api_that_stays_away_fails_the_task(player: Callable[..., World]) -> None:
    world = player(["unused"])
    with pytest.raises(TaskFailed, match=r"simulator request to .* failed for 0\.5 s: no connection"):
        await play(world, simulator_deadline_s=0.1).react("Answer.")


async def test_calls_at_once_are_bounded(player: Callable[..., World]) -> None:
    world = player(lambda prompt: "Try again.")
    world.engine.gate.clear()
    async with world.serving():
        shared = model(world, simulator_max_concurrent=2)
        people = [PlayedPersona(STUDENT, PROBLEM, "Hello", shared) for _ in range(5)]
        reactions = [asyncio.create_task(person.react("Answer.")) for person in people]
        await world.until(lambda: world.engine.busy == 2)
        await asyncio.sleep(0.2)
        world.engine.gate.set()
        await asyncio.gather(*reactions)
    assert (world.engine.most_busy, len(world.engine.requests)) == (2, 5)


def plays_by_the_examples(prompt: str) -> str:
    """Complains once and is satisfied with the second answer."""
    sentinel = re.findall(r"with the word (\w+):", prompt)[0]
    return "Please try again." if prompt.count("<|im_start|>assistant") == 2 else f"Thanks! {sentinel}"


async def test_the_feeder_holds_conversations_of_played_people_and_closes_with_the_sentinel(
    player: Callable[..., World], model_dir: Path, monkeypatch
) -> None:
    monkeypatch.setattr("openclaw_core.feeder.feeder.POLL_S", 0.05)
    people = player(plays_by_the_examples)
    overrides = {"persona_set": "homework", "simulator": "openai", "simulator_url": people.gateway_url, "sessions_in_flight": 2}
    overrides |= {"simulator_model": people.config.model.name, "max_turns": 4, "simulator_max_tokens": 3000}
    world = build_world(model_dir, lambda prompt: "An answer.", {f"feeder.{name}": value for name, value in overrides.items()})
    stop = asyncio.Event()
    feeding = run_feeder(world.config, world.gateway_url, API_KEY, world.control_url, CONTROL_TOKEN, stop, API_KEY)
    async with people.serving(), world.serving():
        task = asyncio.create_task(feeding)
        await world.until(lambda: len({owner.split("-")[0] for owner, _ in world.of("next_state")}) == 3)
        await world.until(lambda: len([1 for _, state in world.of("next_state") if "_DONE" in state.text]) >= 6)
        stop.set()
        summary = await asyncio.wait_for(task, 20)
    said = {(owner.split("-")[0], state.text) for owner, state in world.of("next_state")}
    assert said == {(name, "Please try again.") for name in ("student", "ta", "teacher")} | {
        ("student", "Thanks! HOMEWORK_DONE"),
        ("ta", "Thanks! GRADING_DONE"),
        ("teacher", "Thanks! COMMENT_DONE"),
    }
    assert summary.done == summary.sessions >= 6 and summary.satisfied == 0 and summary.failures == 0
    assert {outcome["ground_truth"] for _, outcome in world.of("outcome")}.isdisjoint({None, ""})


@pytest.mark.parametrize(
    ("overrides", "key", "error", "complaint"),
    [
        ({"feeder.persona_set": "homework"}, None, FeederError, "set OPENCLAW_SIMULATOR_API_KEY or ARK_API_KEY"),
        ({"feeder.persona_set": "local"}, "key", PersonaError, "persona student has no sentinel"),
    ],
)
async def test_what_played_people_need_is_said_before_anything_is_sent(
    player: Callable[..., World], overrides, key: str | None, error, complaint: str
) -> None:
    world = player(["unused"], **{"feeder.simulator": "openai"} | overrides)
    with pytest.raises(error, match=complaint):
        await feed_gateway(world.config, world.gateway_url, API_KEY, asyncio.Event(), key)
