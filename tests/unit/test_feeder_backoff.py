from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest

from openclaw_core.feeder.backoff import Backoff, Unavailable


class Flaky:
    """Unavailable ``failures`` times, then done; remembers when it was called."""

    def __init__(self, failures: int, retry_after_s: float | None = None) -> None:
        self.failures = failures
        self.retry_after_s = retry_after_s
        self.times: list[float] = []

    async def __call__(self) -> str:
        self.times.append(asyncio.get_running_loop().time())
        if len(self.times) <= self.failures:
            raise Unavailable(f"failure {len(self.times)}", self.retry_after_s)
        return "done"


async def test_call_is_tried_until_it_succeeds_with_growing_pauses() -> None:
    call = Flaky(failures=4)
    assert await Backoff(deadline_s=5, first_s=0.02, longest_s=0.08).run("it", call) == "done"
    pauses = [later - sooner for sooner, later in pairwise(call.times)]
    assert len(pauses) == 4
    assert all(pause >= least for pause, least in zip(pauses, [0.01, 0.02, 0.04, 0.04], strict=True))


async def test_last_failure_is_raised_when_time_is_up() -> None:
    call = Flaky(failures=10_000)
    with pytest.raises(Unavailable, match=r"failure \d+"):
        await Backoff(deadline_s=1, first_s=0.01, longest_s=0.02).run("it", call)
    assert len(call.times) > 5
    assert call.times[-1] - call.times[0] < 2


async def test_server_decides_the_shortest_pause() -> None:
    call = Flaky(failures=1, retry_after_s=0.2)
    await Backoff(deadline_s=5, first_s=0.001).run("it", call)
    assert call.times[1] - call.times[0] >= 0.2


async def test_pause_beyond_the_deadline_is_not_waited_for() -> None:
    call = Flaky(failures=1, retry_after_s=60)
    with pytest.raises(Unavailable):
        await asyncio.wait_for(Backoff(deadline_s=1, first_s=0.001).run("it", call), timeout=0.9)


async def test_other_failures_are_not_repeated() -> None:
    calls = 0

    async def broken() -> None:
        nonlocal calls
        calls += 1
        raise ValueError("for good")

    with pytest.raises(ValueError, match="for good"):
        await Backoff(deadline_s=5).run("it", broken)
    assert calls == 1
