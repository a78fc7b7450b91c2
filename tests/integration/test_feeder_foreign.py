"""The feeder against gateways without a training service, with files, and as the command `openclaw-rl feed --url`."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from openclaw_core.feeder import FeederError, feed_gateway, load_personas, training_problems
from openclaw_core.feeder.bookkeeping import PositionFile
from openclaw_core.feeder.client_driver import ClientDriver
from openclaw_core.feeder.feeder import Feeder
from openclaw_core.feeder.problems import Problem
from tests.gateway_world import API_KEY, World, build_world
from tests.models import tiny_llama

CHAIN = load_personas("homework", ["student", "ta", "teacher"])


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("model"))


@pytest.fixture
def problems(tmp_path: Path) -> Path:
    path = tmp_path / "problems.json"
    rows = [
        {"question": f"Ann has {n} pens and buys {n + 1} more. How many?", "ground_truth_answer": 2 * n + 1} for n in range(12)
    ]
    path.write_text(json.dumps(rows))
    return path


@pytest.fixture
def build(model_dir: Path, problems: Path) -> Callable[..., World]:
    """A gateway without a control API; of the 12 problems 4 are held out."""
    settings: dict[str, Any] = {"feeder.problems": f"file://{problems}", "feeder.epochs": 1, "evaluation.problems": 4}
    settings |= {"feeder.sessions_in_flight": 3, "feeder.max_turns": 1}
    settings |= {"rollout.max_response_tokens": 400, "model.context_length": 4000}
    return lambda script=lambda prompt: "An answer.", **overrides: build_world(model_dir, script, settings | overrides)


def feed(world: World, stop: asyncio.Event | None = None, **options: Any) -> Any:
    return feed_gateway(world.config, world.gateway_url, API_KEY, stop or asyncio.Event(), **options)


def problem_numbers(world: World) -> list[int]:
    """Of the students' sessions, in the order in which they were begun."""
    sessions = [session for session, _ in world.of("turn") if session.startswith("student")]
    return [int(session.split("-")[4]) + 1 for session in sessions]


async def test_a_gateway_alone_is_fed_until_the_epochs_are_over(build: Callable[..., World]) -> None:
    world = build(**{"feeder.epochs": 2})
    async with world.serving_gateway():
        summary = await asyncio.wait_for(feed(world), 60)
    assert (summary.ended, summary.tasks, summary.sessions, summary.turns) == ("exhausted", 16, 48, 48)
    assert sorted(problem_numbers(world)) == list(range(1, 17))
    assert len(world.of("next_state")) == 48, "every session was closed with a last word"
    told = summary.as_json()
    assert (told["satisfied_share"], told["turns_per_session"], told["failures"]) == (0.0, 1.0, 0)
    assert told["sessions_per_minute"] == pytest.approx(60 * 48 / summary.seconds, rel=1e-2)


async def test_fewer_problems_than_tasks_in_flight_end_too(build: Callable[..., World]) -> None:
    world = build(**{"feeder.sessions_in_flight": 30, "feeder.shards": 4})
    async with world.serving_gateway():
        summary = await asyncio.wait_for(feed(world), 60)
    assert (summary.ended, summary.tasks) == ("exhausted", 2)
    assert sorted(problem_numbers(world)) == [1, 5]


async def test_a_position_file_makes_the_next_feeder_go_on_with_what_was_not_over(
    build: Callable[..., World], tmp_path: Path
) -> None:
    place, world, stop = tmp_path / "place.json", build(**{"feeder.personas": ["student"], "feeder.epochs": 3}), asyncio.Event()

    def answer(prompt: str) -> str:
        if len(world.engine.requests) > 3:
            world.engine.gate.clear()
        return "An answer."

    world.engine.script = answer
    async with world.serving_gateway():
        task = asyncio.create_task(feed(world, stop, position_file=place))
        await world.until(lambda: not world.engine.gate.is_set() and world.engine.busy == 3)
        stop.set()
        first = await asyncio.wait_for(task, 20)
        begun, position = len(world.engine.requests), json.loads(place.read_text())["position"]
        world.engine.script, old = (lambda prompt: "An answer."), len(world.of("turn"))
        world.engine.gate.set()
        await asyncio.sleep(0.2)
        again = await asyncio.wait_for(feed(world, position_file=place), 60)
        last = await asyncio.wait_for(feed(world, position_file=place), 60)
    assert first.ended == "stopped" and position <= first.tasks < begun < 24
    assert (again.ended, again.tasks) == ("exhausted", 24 - position)
    assert set(range(position + 1, 25)) <= set(problem_numbers(world)[old:])
    assert (last.ended, last.tasks) == ("exhausted", 0)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("{", "cannot be read"),
        ('{"problems": "gsm8k", "seed": 1, "shard": 0, "shards": 1, "position": 3}', "is of other problems: .*gsm8k"),
    ],
)
async def test_a_position_file_that_does_not_fit_is_refused(
    build: Callable[..., World], tmp_path: Path, content: str, complaint: str
) -> None:
    (tmp_path / "place.json").write_text(content)
    with pytest.raises(FeederError, match=complaint):
        await feed(build(), position_file=tmp_path / "place.json")


def test_the_position_is_before_the_first_problem_that_is_not_over(build: Callable[..., World], tmp_path: Path) -> None:
    place = tmp_path / "place.json"
    books = PositionFile(build().config.feeder, place)
    given = [Problem(str(number), "1 2", "3", number) for number in (1, 3, 5, 7)]
    for problem in given:
        books.given(problem)
    positions = []
    for problem in (given[1], given[0], given[3], given[2]):
        books.over(problem)
        positions.append(json.loads(place.read_text())["position"])
    assert positions == [0, 4, 4, 7]


async def test_a_gateway_that_knows_no_sessions_is_fed_without_last_words(build: Callable[..., World], monkeypatch) -> None:
    """As any other server with the chat route: closing a session is met with 404, once."""
    world, asked = build(), []

    def without_sessions(create_app: Callable[..., Any]) -> Callable[..., Any]:
        def create(deps: Any) -> Any:
            app = create_app(deps)

            async def other_make(scope: Any, receive: Any, send: Any) -> None:
                if scope["type"] == "http" and scope["path"].endswith("/close"):
                    asked.append(scope["path"])
                    await send({"type": "http.response.start", "status": 404, "headers": []})
                    await send({"type": "http.response.body", "body": b'{"detail": "Not Found"}'})
                else:
                    await app(scope, receive, send)

            return other_make

        return create

    from tests import gateway_world

    monkeypatch.setattr(gateway_world, "create_app", without_sessions(gateway_world.create_app))
    async with world.serving_gateway():
        summary = await asyncio.wait_for(feed(world), 60)
    assert (summary.tasks, summary.failures) == (8, 0)
    assert 1 <= len(asked) <= 3 and not world.of("next_state")


PLEASING = (
    "Ann has some pens, 3 and 4 and 5 and so on, and buys more pens, so you add the pens up and have many pens, well done. "
)


@pytest.mark.parametrize("liked", [True, False])
async def test_with_files_the_result_is_written_down_before_the_session_ends(build: Callable[..., World], liked: bool) -> None:
    """The conversations of an assistant with files, held by the plain client; the real CLI's are tests/cli."""
    text = f"{PLEASING * 6} " + " ".join(map(str, range(14)))
    room = {"model.context_length": 16_000, "rollout.max_response_tokens": 2000}
    settings = {"feeder.driver": "openclaw_cli", "feeder.max_turns": 2} | room
    world = build(lambda prompt: text if liked else "**No**", **settings)
    driver = ClientDriver(world.config, world.gateway_url, API_KEY)
    files: list[dict[str, str]] = []
    monkey = driver.task
    driver.task = lambda task_id, brought: files.append(dict(brought)) or monkey(task_id, brought)  # type: ignore[method-assign]
    feeder = Feeder(world.config, CHAIN, driver, PositionFile(world.config.feeder, None))
    async with world.serving_gateway():
        assert await asyncio.wait_for(feeder.run(), 60) == "exhausted"
        await driver.aclose()

    questions = {problem.question for problem in training_problems(world.config)}
    assert {tuple(brought.items()) for brought in files} == {
        (("homework/problem.txt", f"Problem:\n{question}\n\nSolution:\n"),) for question in questions
    }
    sessions: dict[str, list[Any]] = {}
    for session, turn in world.of("turn"):
        sessions.setdefault(session, []).append(turn)
    ends = dict(world.of("next_state"))
    for session, turns in sessions.items():
        persona = next(persona for persona in CHAIN if session.startswith(f"{persona.name}-"))
        said = [message["content"] for message in turns[-1].messages if message["role"] == "user"]
        assert said[0] == persona.first_message_with_files
        assert said[-1].endswith(f" {persona.closing_request}")
        assert len(said) == (2 if liked else 3)
        if liked:
            assert said[-1].removesuffix(f" {persona.closing_request}") in persona.thanks
            assert ends[session].text == persona.sentinel
        else:
            assert any(text in said[-1] for text in persona.complaints.style + persona.complaints.relevance)
    assert feeder.counts.summary("exhausted").turns == sum(map(len, sessions.values()))


async def test_the_command_feeds_a_gateway_by_url_and_key_file_until_it_is_told_to_stop(
    build: Callable[..., World], tmp_path: Path
) -> None:
    world = build()
    (tmp_path / "key").write_text(f"{API_KEY}\n")
    settings = [f"feeder.problems={world.config.feeder.problems}", "evaluation.problems=4", "feeder.max_turns=1"]
    command = [
        sys.executable,
        "-m",
        "openclaw_core.cli",
        "feed",
        "--json",
        "--url",
        world.gateway_url,
        "--key-file",
        str(tmp_path / "key"),
    ]
    command += [part for setting in settings for part in ("--set", setting)]
    async with world.serving_gateway():
        child = await asyncio.create_subprocess_exec(
            *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL, env=dict(os.environ)
        )
        await world.until(lambda: len(world.of("next_state")) >= 30)
        child.send_signal(signal.SIGTERM)
        out, _ = await asyncio.wait_for(child.communicate(), 60)
    told = json.loads(out)
    assert child.returncode == 0
    assert (told["ended"], told["failures"]) == ("stopped", 0)
    assert 30 <= told["sessions"] <= told["turns"] and told["tasks"] >= 1
