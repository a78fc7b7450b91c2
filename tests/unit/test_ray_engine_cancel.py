"""A call to an engine that is given up ends, whatever comes at that moment."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from types import SimpleNamespace

import pytest

from openclaw_core.engines.ray_engine import RayEngine


@pytest.mark.parametrize("passes", range(5))
async def test_a_cancelled_call_ends_also_where_its_answer_comes_at_that_moment(
    passes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a watch that is cancelled while its engine answers would go on for ever, and whoever waits for its end too."""
    monkeypatch.setattr("ray.cancel", lambda reference: None)
    answer: Future[int] = Future()
    actor = SimpleNamespace(version=SimpleNamespace(remote=lambda: SimpleNamespace(future=lambda: answer)))
    engine, rounds = RayEngine(actor, "engine-0", 10), 0

    async def watch() -> None:
        nonlocal rounds
        while rounds < 100:
            rounds += 1
            await engine.version()
            await asyncio.sleep(0)

    task = asyncio.create_task(watch())
    await asyncio.sleep(0.01)
    answer.set_result(3)
    for _ in range(passes):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
