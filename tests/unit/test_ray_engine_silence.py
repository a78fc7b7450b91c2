"""An engine that says nothing any more, as when its host has lost its power: Ray itself would notice after a minute."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

from openclaw_core.engines import ray_engine as module
from openclaw_core.engines.protocol import EngineError, GenerateRequest
from openclaw_core.engines.ray_engine import RayEngine
from openclaw_core.types import Sampling


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_QUIET_S", 0.02)
    monkeypatch.setattr(module, "_VERSION_DEADLINE_S", 0.2)
    monkeypatch.setattr("ray.cancel", lambda reference: None)


def method(answer: Callable[[], Future[Any]]) -> SimpleNamespace:
    """Of an actor, as RayEngine calls it."""

    def remote(*_arguments: Any) -> SimpleNamespace:
        return SimpleNamespace(future=answer)

    called = SimpleNamespace(remote=remote)
    called.options = lambda **_options: called
    return called


def done(value: Any) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_result(value)
    return future


async def no_events() -> AsyncIterator[Any]:
    await asyncio.Event().wait()
    yield


def engine(version: Callable[[], Future[Any]], pause: Callable[[], Future[Any]] = Future, deadline_s: float = 600) -> RayEngine:
    events = SimpleNamespace(options=lambda **_options: SimpleNamespace(remote=lambda _client: no_events()))
    quiet = method(Future)
    up = method(lambda: done({}))
    actor = SimpleNamespace(version=method(version), pause=method(pause), stats=up, events=events, submit=quiet, cancel=quiet)
    return RayEngine(actor, "engine-1", deadline_s=deadline_s)


async def ask(engine: RayEngine) -> None:
    async for _ in engine.generate(GenerateRequest("r", (5,), Sampling(1.0, 8), ())):
        pass


@pytest.mark.parametrize("call", [RayEngine.pause, ask])
async def test_whoever_waits_for_it_is_told_long_before_the_deadline(call: Callable[[RayEngine], Any]) -> None:
    silent = engine(version=Future)
    await silent.stats()
    with pytest.raises(EngineError, match=r"engine-1\.version did not answer within 0\.2 s$"):
        await asyncio.wait_for(call(silent), 30)


async def test_one_that_has_not_come_up_yet_has_until_the_deadline() -> None:
    with pytest.raises(EngineError, match=r"engine-1\.pause did not answer within 0\.5 s \(engine\.deadline_s\)"):
        await engine(version=Future, deadline_s=0.5).pause()


async def test_one_that_is_slow_and_there_is_waited_for() -> None:
    answer: Future[None] = Future()
    looks = 0

    def version() -> Future[Any]:
        nonlocal looks
        looks += 1
        if looks == 5:
            answer.set_result(None)
        return done(3)

    slow = engine(version, pause=lambda: answer)
    await slow.stats()
    await asyncio.wait_for(slow.pause(), 30)
    assert looks == 5
