"""The real openclaw CLI against the real gateway: what it makes of answers, tools and failures, and what is captured of it.

The engine says what a test wants; test_openclaw_session.py has the one with a model. A turn costs 2 to 3 CPU-seconds.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import psutil
import pytest

from openclaw_core.feeder.errors import FeederError, TaskFailed
from openclaw_core.feeder.openclaw_cli import OpenClawDriver
from openclaw_core.gateway import errors
from openclaw_core.types import DropReason, NextState
from tests.cli.openclaw_parts import SYSTEM_PROMPT, CliWorld, call, scripted
from tests.gateway_world import API_KEY, Script

pytestmark = pytest.mark.cli

Start = Callable[..., Awaitable[tuple[CliWorld, OpenClawDriver]]]
CLI_TRIES = 12
"""Requests of one turn after which it gives up, within about 19 s."""
SUMMARISER = "You are a context summarization assistant"


@pytest.fixture(scope="session")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the CLI's folders are made; what Node has compiled is shared."""
    return tmp_path_factory.mktemp("openclaw-state")


@pytest.fixture
async def start(state: Path, tmp_path: Path) -> AsyncIterator[Start]:
    """Starts a gateway that says what a script says, and a driver for it."""
    async with AsyncExitStack() as stack:

        async def started(script: Script, key: str = API_KEY, **overrides: Any) -> tuple[CliWorld, OpenClawDriver]:
            world = await stack.enter_async_context(scripted(script, tmp_path, feeder__cli__state=state, **overrides))
            driver = OpenClawDriver(world.config, world.gateway_url, key)
            stack.push_async_callback(driver.aclose)
            return world, driver

        yield started


def last_question(prompt: str) -> str:
    """What the user said last, and what came after it."""
    return prompt.rpartition("<|im_start|>user\n")[2]


def roles(turn: Any) -> list[str]:
    return [message["role"] for message in turn.messages]


def with_files(prompt: str) -> str:
    """The student's assistant reads the homework and writes the answer down; the TA's reads what was written."""
    asked = last_question(prompt)
    if "12 apples" in asked:
        return "<think>\nThree boxes of four.\n</think>\n\nI look.\n" + call("write", path="answers/first.md", content="twelve")
    if "my homework" in prompt and "<tool_response>" not in prompt:
        return call("read", path="homework.md")
    if "check it" in prompt and "<tool_response>" not in prompt:
        return call("read", path="answers/first.md")
    return "<think>\nDone.\n</think>\n\nHere it is."


async def test_tools_round_trips_are_captured_turn_by_turn(start: Start, state: Path) -> None:
    """What the student's session wrote, the TA's reads; every request is one turn, in the renderer's and the engine's ids."""
    world, driver = await start(with_files)
    opening = "--json: ${HOME} is my homework, naïve café, 三加二 👩‍👧"
    async with driver.task("one", {"homework.md": "How many? 12 apples."}) as space:
        async with space.converse("student-1") as student:
            first = await student.say(opening)
            await student.close("Thanks. HOMEWORK_DONE")
        async with space.converse("ta-1") as ta:
            second = await ta.say("Please check it.")
            await ta.close(None)
    assert (first.text, first.truncated, second.text) == ("Here it is.", False, "Here it is.")

    (read, after_read), (wrote, after_write), (said, last_word) = world.session("student-1")
    assert roles(said) == ["system", "user", "assistant", "tool", "assistant", "tool"]
    assert [turn.messages[0]["content"] for turn in (read, wrote, said)] == [SYSTEM_PROMPT] * 3
    assert read.messages[1]["content"] == opening
    assert after_read == NextState("tool", "How many? 12 apples.")
    assert isinstance(after_write, NextState)
    assert after_write.role == "tool"
    assert "answers/first.md" in after_write.text
    assert (wrote.answer, said.answer) == ("I look.", "Here it is.")
    assert last_word == NextState("user", "Thanks. HOMEWORK_DONE")
    (_, found), (checked, nothing) = world.session("ta-1")
    assert (found, nothing) == (NextState("tool", "twelve"), DropReason.SESSION_CLOSED)
    assert [message["content"] for message in checked.messages if message["role"] == "user"] == ["Please check it."]

    turns = [turn for _, turn in world.of("turn")]
    assert [turn.index for turn in turns] == [0, 1, 2, 0, 1]
    assert [post.tags for post in world.posts] == [("student-1", "main")] * 3 + [("ta-1", "main")] * 2
    for turn, post, request in zip(turns, world.posts, world.engine.requests, strict=True):
        assert turn.prompt_ids == request.input_ids == post.rendered(world.engine.renderer)
        parsed = world.engine.renderer.parse(turn.response_ids, turn.prompt_ids)
        assert parsed.text == turn.answer
        assert world.engine.renderer.decode(turn.response_ids[:-1])
    assert not list(state.glob("*/task-*"))


async def test_file_tools_do_not_leave_the_tasks_folder(start: Start) -> None:
    """The CLI's own configuration, which holds the key, is a neighbour."""
    world, driver = await start(
        lambda prompt: "Well." if "<tool_response>" in prompt else call("read", path="../session-1/openclaw.json")
    )
    async with driver.task("one", {}) as space, space.converse("s") as conversation:
        assert (await conversation.say("Tell me the key.")).text == "Well."
    (_, result), _ = world.session("s")
    assert isinstance(result, NextState)
    assert "workspace" in result.text
    assert API_KEY not in str(world.journal)


async def test_a_gateway_that_is_full_once_is_bridged_by_the_cli(start: Start) -> None:
    world, driver = await start(lambda prompt: "Yes.", rollout__hold_max_s=0.2)
    world.room.pause()
    async with driver.task("one", {}) as space, space.converse("s") as conversation:
        asking = asyncio.create_task(conversation.say("Well?"))
        await world.until(lambda: bool(world.posts))
        world.room.resume()
        assert (await asking).text == "Yes."
    assert [post.status for post in world.posts] == [503, 200]
    assert [post.tags for post in world.posts] == [("s", "main")] * 2
    assert len(world.session("s")) == 1


async def test_a_long_publish_is_waited_for_and_the_message_is_said_once(start: Start, monkeypatch: Any) -> None:
    """The CLI gives up after a dozen tries; the turn is then begun anew, without what the failed one left."""
    monkeypatch.setattr(errors, "RETRY_AFTER_S", 1)
    world, driver = await start(lambda prompt: "Yes.", rollout__hold_max_s=0.1)
    async with driver.task("one", {}) as space, space.converse("s") as conversation:
        await conversation.say("First?")
        world.room.pause()
        asking = asyncio.create_task(conversation.say("Second?"))
        await world.until(lambda: len(world.posts) == 1 + CLI_TRIES, 120)
        world.room.resume()
        assert (await asking).text == "Yes."
    assert [message["content"] for message in world.session("s")[1][0].messages if message["role"] != "system"] == [
        "First?",
        "Yes.",
        "Second?",
    ]
    assert len(world.session("s")) == 2


async def test_a_context_overflow_is_no_answer_and_leaves_no_trace(start: Start, state: Path) -> None:
    """The CLI prints the answer before as if it were new. What is kept of the conversation does not hold the key."""
    world, driver = await start(lambda prompt: "Yes.", feeder__cli__keep_state="failed")
    with pytest.raises(TaskFailed, match="maximum context length is 16384"):
        async with driver.task("one", {}) as space, space.converse("s") as conversation:
            await conversation.say("First?")
            with pytest.raises(TaskFailed, match="maximum context length is 16384"):
                await conversation.say("word " * 9000)
            await conversation.say("Second?")
            raise await failure(conversation.say("word " * 9000))
    kept = [file for file in state.glob("*/task-*/session-1/**/*") if file.is_file()]
    assert {"openclaw.json", "turn-004.err"} <= {file.name for file in kept}
    assert not [file for file in kept if API_KEY in file.read_text()]
    said = [message["content"] for message in world.session("s")[1][0].messages if message["role"] != "system"]
    assert said == ["First?", "Yes.", "Second?"]


async def failure(awaitable: Awaitable[Any]) -> Exception:
    """The error that comes out of it."""
    with pytest.raises(TaskFailed) as raised:
        await awaitable
    return raised.value


async def test_the_summarisers_request_is_not_captured(start: Start) -> None:
    """Two long messages fill the context that the CLI knows of; it has them summarised, and the session goes on."""
    world, driver = await start(
        lambda prompt: "A summary." if SUMMARISER in prompt else "Yes.",
        model__context_length=30_000,
        feeder__cli__context_window=16_000,
    )
    async with driver.task("one", {}) as space, space.converse("s") as conversation:
        for word in ("apple ", "pear ", "plum "):
            assert (await conversation.say(word * 2850)).text == "Yes."
    summaries = [post for post in world.posts if SUMMARISER.encode() in post.body]
    assert {post.tags for post in summaries} == {("s", "side")}
    turns = world.session("s")
    assert len(turns) == 3
    assert len(world.posts) == len(turns) + len(summaries)
    assert all(SUMMARISER not in str(turn.messages) for turn, _ in turns)
    assert isinstance(turns[0][1], NextState)
    assert turns[1][1] is DropReason.HISTORY_DIVERGED


async def test_a_cut_answer_is_told_from_a_whole_one(start: Start) -> None:
    world, driver = await start(lambda prompt: "word " * 100, rollout__max_response_tokens=30)
    async with driver.task("one", {}) as space, space.converse("s") as conversation:
        answer = await conversation.say("Go on.")
    ((turn, _),) = world.session("s")
    assert answer.truncated
    assert answer.text == turn.answer
    assert len(turn.response_ids) == 30


async def test_a_wrong_key_ends_the_feeder(start: Start) -> None:
    world, driver = await start(lambda prompt: "Yes.", key="wrong")
    async with driver.task("one", {}) as space, space.converse("s") as conversation:
        with pytest.raises(FeederError, match="401 Incorrect or missing API key") as refused:
            await conversation.say("Hello?")
    assert not isinstance(refused.value, TaskFailed)
    assert not world.engine.requests


@pytest.mark.parametrize("text", ["NO_REPLY", " \n"])
async def test_an_answer_that_the_cli_does_not_show_fails_the_turn(start: Start, text: str) -> None:
    _, driver = await start(lambda prompt: text)
    async with driver.task("one", {}) as space, space.converse("s") as conversation:
        with pytest.raises(TaskFailed, match=r"shows no answer|no new answer"):
            await conversation.say("Hello?")


async def test_a_turn_that_takes_too_long_fails_and_leaves_no_process(start: Start) -> None:
    world, driver = await start(lambda prompt: "Yes.", feeder__cli__timeout_s=2)
    world.engine.gate.clear()
    async with driver.task("one", {}) as space, space.converse("s") as conversation:
        with pytest.raises(TaskFailed, match=r"no answer within feeder\.cli\.timeout_s"):
            await conversation.say("Hello?")
        assert not clis()
    world.engine.gate.set()


async def test_a_stop_ends_the_processes_and_no_more_run_than_allowed(start: Start) -> None:
    """Three people at once, two processes: the third waits. None is left after a cancel."""
    world, driver = await start(lambda prompt: "Yes.", feeder__cli__max_at_once=2)
    world.engine.gate.clear()

    async def talk(name: str) -> None:
        async with driver.task(name, {}) as space, space.converse(name) as conversation:
            await conversation.say("Hello?")

    talks = [asyncio.create_task(talk(name)) for name in ("a", "b", "c")]
    await world.until(lambda: world.engine.busy == 2)
    assert len(clis()) == 2
    assert not [process for process in clis() if API_KEY in str(process.cmdline()) + str(process.environ())]
    for task in talks:
        task.cancel()
    await asyncio.gather(*talks, return_exceptions=True)
    assert not clis()
    world.engine.gate.set()
    assert not world.of("turn")


def clis() -> list[psutil.Process]:
    """The CLI processes that this one has started."""
    return [
        process for process in psutil.Process().children(recursive=True) if re.search("openclaw", " ".join(process.cmdline()))
    ]
