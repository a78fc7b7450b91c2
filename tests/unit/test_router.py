"""Several engines as one: sessions stick, failures move on, and an engine comes back with the present weights or not at all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from openclaw_core.engines.protocol import (
    EngineAborted,
    EngineError,
    EngineFull,
    EngineLost,
    GenerateRequest,
    RequestRefused,
    Tokens,
)
from openclaw_core.engines.router import Router, SlotState
from openclaw_core.errors import OpenClawError
from openclaw_core.types import FinishReason, Sampling


@dataclass
class Engine:
    """One life of an engine. ``fail``: raised by each request after ``fail_after`` tokens."""

    name: str
    grammars: bool = False
    alive: bool = True
    weights: Any = None
    serving: int = 0
    paused: bool = False
    fail: EngineError | None = None
    fail_after: int = 0
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    sessions: list[str | None] = field(default_factory=list)
    closed: bool = False
    loads: bool = True

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Tokens, None]:
        self.sessions.append(request.session_id)
        for index in range(3):
            if not self.alive:
                raise EngineError(f"{self.name} is dead")
            if self.fail and index == self.fail_after:
                raise self.fail
            yield Tokens((index,), (-1.0,), self.serving, FinishReason.STOP if index == 2 else None)
            await self.gate.wait()

    async def prefill_logprobs(self, prompt_ids: Any, response_ids: Any, temperature: float) -> tuple[float, ...]:
        return (-1.0,)

    async def pause(self) -> None:
        self._answer()
        self.paused = True

    async def resume(self) -> None:
        self._answer()
        self.paused = False

    async def load_weights(self, weights: Any, version: int, checksum: str) -> None:
        self._answer()
        assert self.paused
        if not self.loads:
            raise EngineError(f"{self.name} got another checksum")
        if getattr(weights, "gone", False):
            raise EngineError(f"{self.name} got no weights")
        self.weights, self.serving = weights, version

    async def version(self) -> int:
        self._answer()
        return self.serving

    async def close(self) -> None:
        self.closed, self.alive = True, False

    def _answer(self) -> None:
        if not self.alive:
            raise EngineError(f"{self.name} is dead")


@dataclass
class Published:
    """Weights that a sender has. ``gone``: it has them no more."""

    checksum: str = "checksum"
    gone: bool = False


@dataclass
class World:
    """A router over two engines, and every life that an engine has had. ``present``: what the sender has now."""

    router: Router
    lives: dict[str, list[Engine]]
    present: Published | OpenClawError | None = None
    asked: list[int] = field(default_factory=list)
    """Versions that the sender was asked for again."""

    async def again(self, version: int) -> Published | None:
        self.asked.append(version)
        if isinstance(self.present, OpenClawError):
            raise self.present
        return self.present

    def engine(self, name: str) -> Engine:
        return self.lives[name][-1]

    async def ask(self, session: str | None = None) -> list[int]:
        request = GenerateRequest("r", (5,), Sampling(1.0, 8), (2,), session_id=session)
        return [token async for tokens in self.router.generate(request) for token in tokens.token_ids]

    async def back(self, name: str, lives: int = 2) -> Engine:
        async with asyncio.timeout(10):
            while len(self.lives[name]) < lives or len(self.router.ready) < 2:
                await asyncio.sleep(0.01)
        return self.engine(name)


@pytest.fixture
async def world() -> AsyncIterator[World]:
    lives: dict[str, list[Engine]] = {"a": [], "b": []}

    def starts(name: str) -> Any:
        async def start() -> Engine:
            lives[name].append(Engine(f"{name}{len(lives[name])}"))
            lives[name][-1].gate.set()
            return lives[name][-1]

        return start

    router = Router([(name, starts(name)) for name in lives], wait_s=0.5, weights_again=lambda version: world.again(version))
    world = World(router, lives)
    await world.router.start()
    yield world
    await world.router.close()


async def publish(router: Router, version: int, weights: Any = None) -> None:
    await router.pause()
    await router.load_weights(weights or f"weights {version}", version, "checksum")
    await router.resume()


async def test_a_session_stays_where_it_was_and_others_go_where_there_is_room(world: World) -> None:
    a, b = world.engine("a"), world.engine("b")
    a.gate.clear()
    long = asyncio.create_task(world.ask("long"))
    while not a.sessions and not b.sessions:
        await asyncio.sleep(0)
    busy, idle = (a, b) if a.sessions else (b, a)
    for _ in range(3):
        await world.ask("s")
    assert idle.sessions == ["s"] * 3
    a.gate.set()
    await long
    idle.gate.clear()
    waiting = asyncio.create_task(world.ask("other"))
    await asyncio.sleep(0.01)
    idle.gate.set()
    await waiting
    await world.ask("long")
    assert busy.sessions.count("long") == 2


async def test_a_request_without_a_token_out_is_asked_elsewhere_and_the_dead_engine_returns(world: World) -> None:
    await publish(world.router, 4)
    world.engine("a").alive = False
    for _ in range(2):
        assert await world.ask() == [0, 1, 2]
    again = await world.back("a")
    assert (again.name, again.serving, again.weights, again.paused) == ("a1", 4, "weights 4", False)
    assert world.lives["a"][0].closed
    assert world.router.slots[0].restarts == 1


async def test_an_engine_that_dies_in_the_middle_of_an_answer_is_lost_not_repeated(world: World) -> None:
    engine = world.engine("a")
    engine.gate.clear()
    request = GenerateRequest("r", (5,), Sampling(1.0, 8), (2,))
    answer = world.router.generate(request)
    assert (await anext(answer)).token_ids == (0,)
    engine.alive = False
    engine.gate.set()
    with pytest.raises(EngineLost, match="a0 is dead"):
        await anext(answer)
    await world.back("a")


async def test_a_request_that_fails_everywhere_takes_no_engine_out(world: World) -> None:
    for name in world.lives:
        world.engine(name).fail = EngineError("cannot compute that")
    with pytest.raises(EngineError, match="cannot compute that"):
        await world.ask()
    assert [slot.state for slot in world.router.slots] == [SlotState.READY] * 2
    assert [len(lives) for lives in world.lives.values()] == [1, 1]


@pytest.mark.parametrize("error", [RequestRefused("too long"), EngineAborted("paused")])
async def test_what_another_engine_could_not_help_is_passed_on_at_once(world: World, error: EngineError) -> None:
    for name in world.lives:
        world.engine(name).fail = error
    with pytest.raises(type(error)):
        await world.ask()
    assert sum(len(lives[0].sessions) for lives in world.lives.values()) == 1


async def test_an_engine_that_does_not_take_a_version_never_answers_with_another(world: World) -> None:
    stale = world.engine("b")
    stale.loads = False
    await publish(world.router, 7)
    before = len(stale.sessions)
    assert [await world.ask() for _ in range(3)] == [[0, 1, 2]] * 3
    assert len(stale.sessions) == before
    assert (await world.back("b")).serving == 7


async def test_its_status_says_which_version_each_engine_took(world: World) -> None:
    def told() -> dict[str, tuple[str, int | None, int]]:
        return {each["name"]: (each["state"], each["version"], each["restarts"]) for each in world.router.status()}

    assert told() == {"a": ("ready", None, 0), "b": ("ready", None, 0)}
    await publish(world.router, 6)
    world.engine("b").loads = False
    await world.router.pause()
    await world.router.load_weights("weights 7", 7, "checksum")
    assert told() == {"a": ("ready", 7, 0), "b": ("starting", 6, 0)}
    await world.router.resume()
    await world.back("b")
    assert told() == {"a": ("ready", 7, 0), "b": ("ready", 7, 1)}
    a, b = world.engine("a"), world.engine("b")
    for engine in (a, b):
        engine.gate.clear()
    asked = asyncio.create_task(world.ask())
    while not a.sessions and not b.sessions:
        await asyncio.sleep(0)
    assert sum(each["in_flight"] for each in world.router.status()) == 1
    for engine in (a, b):
        engine.gate.set()
    await asked


async def test_a_version_that_no_engine_takes_is_an_error_and_a_retry_finds_them_back(world: World) -> None:
    for name in world.lives:
        world.engine(name).loads = False
    with pytest.raises(EngineError, match="no engine has taken version 3: a0 got another checksum; b0 got another checksum"):
        await publish(world.router, 3)
    await world.back("a")
    await publish(world.router, 3)
    assert await world.router.version() == 3


async def test_an_engine_that_returns_during_a_publish_stays_paused_until_its_end(world: World) -> None:
    await publish(world.router, 1)
    await world.router.pause()
    world.engine("a").alive = False
    await world.router.load_weights("weights 2", 2, "checksum")
    again = await world.back("a")
    assert (again.serving, again.paused) == (2, True)
    await world.router.resume()
    assert not again.paused


async def test_an_engine_that_returns_when_the_sender_is_gone_gets_the_version_from_its_successor(world: World) -> None:
    first = Published()
    await publish(world.router, 4, first)
    first.gone, world.present = True, Published()
    world.engine("a").alive = False
    await world.ask()
    await world.ask()
    again = await world.back("a")
    assert (again.serving, again.weights, world.asked) == (4, world.present, [4])


@pytest.mark.parametrize("present", [None, OpenClawError("the trainer does not start")])
async def test_an_engine_without_weights_to_load_stays_out_until_the_next_publish(
    world: World, present: OpenClawError | None
) -> None:
    first = Published()
    await publish(world.router, 4, first)
    first.gone, world.present = True, present
    world.engine("a").alive = False
    await world.ask()
    await world.ask()
    while not world.asked:
        await asyncio.sleep(0.01)
    assert [slot.name for slot in world.router.ready] == ["b"]
    await publish(world.router, 5, Published())
    assert (await world.back("a", lives=3)).serving == 5


async def test_without_an_engine_a_request_waits_and_then_is_told_so(world: World) -> None:
    for name in world.lives:
        world.engine(name).alive = False
        world.router.slots[list(world.lives).index(name)].start = _never
    with pytest.raises((EngineFull, EngineError), match=r"no engine was ready for 0.5 s|is dead"):
        await world.ask()
    with pytest.raises(EngineFull, match="no engine was ready"):
        await world.ask()
    with pytest.raises(EngineError, match="no engine is ready: a is starting, b is starting"):
        await world.router.version()


async def _never() -> Any:
    raise EngineError("no host")


async def test_an_idle_engine_that_died_is_found(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("openclaw_core.engines.router._POLL_S", 0.01)
    await asyncio.sleep(0)
    world.router._do(world.router._watch())
    world.engine("b").alive = False
    assert (await world.back("b")).name == "b1"
