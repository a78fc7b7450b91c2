"""The waiting room: order, bounds, the quota of main turns, and that nothing is lost when requests give up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from openclaw_core.gateway.admission import WaitingRoom
from openclaw_core.gateway.errors import ApiError
from openclaw_core.types import TurnType

MAIN, SIDE = TurnType.MAIN, TurnType.SIDE


class Visitors:
    """Requests that note when they are admitted and stay until told to leave."""

    def __init__(self, room: WaitingRoom) -> None:
        self.room = room
        self.admitted: list[str] = []
        self.tasks: dict[str, asyncio.Task[None]] = {}
        self._leave: dict[str, asyncio.Event] = {}

    async def come(self, *names: str, turn_type: TurnType = MAIN) -> None:
        for name in names:
            self._leave[name] = asyncio.Event()
            self.tasks[name] = asyncio.create_task(self._visit(name, turn_type))
            await asyncio.sleep(0.001)

    async def leave(self, *names: str) -> None:
        for name in names:
            self._leave[name].set()
            await self.tasks[name]
        await asyncio.sleep(0.001)

    async def _visit(self, name: str, turn_type: TurnType) -> None:
        async with self.room.admit(turn_type):
            self.admitted.append(name)
            await self._leave[name].wait()


def room(
    hold_max_s: float = 5.0, hold_max_requests: int = 8, batch_size: int | None = None, occupancy: Callable[[], int] = lambda: 0
) -> WaitingRoom:
    return WaitingRoom(hold_max_s=hold_max_s, hold_max_requests=hold_max_requests, batch_size=batch_size, occupancy=occupancy)


async def test_a_paused_room_admits_in_order_once_it_is_resumed() -> None:
    visitors = Visitors(room())
    visitors.room.pause()
    await visitors.come("a", "b", "c")
    assert (visitors.admitted, visitors.room.queue, visitors.room.accepting) == ([], 3, False)
    visitors.room.resume()
    await asyncio.sleep(0.001)
    assert (visitors.admitted, visitors.room.queue, visitors.room.in_flight) == (["a", "b", "c"], 0, 3)
    await visitors.leave("a", "b", "c")
    assert visitors.room.in_flight == 0


async def test_main_turns_wait_while_the_batch_has_no_place() -> None:
    taken = 2
    visitors = Visitors(room(batch_size=4, occupancy=lambda: taken))
    await visitors.come("a", "b", "c", "d")
    assert visitors.admitted == ["a", "b"]
    taken = 1
    visitors.room.notify()
    await asyncio.sleep(0.001)
    assert visitors.admitted == ["a", "b", "c"]
    await visitors.leave("a")
    assert visitors.admitted == ["a", "b", "c", "d"]
    await visitors.leave("b", "c", "d")


async def test_side_turns_pass_main_turns_that_wait_for_a_place_but_not_a_publish() -> None:
    visitors = Visitors(room(batch_size=1, occupancy=lambda: 1))
    await visitors.come("main")
    await visitors.come("side", turn_type=SIDE)
    assert visitors.admitted == ["side"]
    visitors.room.pause()
    await visitors.come("late", turn_type=SIDE)
    assert visitors.admitted == ["side"]
    assert (visitors.room.in_flight, visitors.room.main_in_flight, visitors.room.queue) == (1, 0, 2)
    visitors.room.resume()
    await visitors.leave("side", "late")
    visitors.tasks["main"].cancel()


async def test_a_newcomer_does_not_pass_one_who_waits_for_the_same() -> None:
    taken = 1
    visitors = Visitors(room(batch_size=1, occupancy=lambda: taken))
    await visitors.come("first")
    taken = 0  # nobody was notified
    await visitors.come("second")
    assert visitors.admitted == ["first"]
    await visitors.leave("first", "second")
    assert visitors.admitted == ["first", "second"]


async def test_a_full_room_turns_away_with_retry_after() -> None:
    visitors = Visitors(room(hold_max_requests=2))
    visitors.room.pause()
    await visitors.come("a", "b", "c")
    with pytest.raises(ApiError, match="2 requests are waiting already") as refused:
        await visitors.tasks["c"]
    assert (refused.value.status, refused.value.code) == (503, "overloaded")
    assert int(refused.value.headers["Retry-After"]) > 0
    visitors.room.resume()
    await visitors.leave("a", "b")
    assert visitors.admitted == ["a", "b"]


async def test_waiting_ends_after_hold_max_s() -> None:
    visitors = Visitors(room(hold_max_s=0.02))
    visitors.room.pause()
    await visitors.come("a")
    with pytest.raises(ApiError, match="without being admitted"):
        await visitors.tasks["a"]
    assert (visitors.room.queue, visitors.room.in_flight) == (0, 0)


@pytest.mark.parametrize("admitted_meanwhile", [False, True])
async def test_one_who_gives_up_leaves_no_trace(admitted_meanwhile: bool) -> None:
    visitors = Visitors(room())
    visitors.room.pause()
    await visitors.come("a")
    if admitted_meanwhile:
        visitors.room.resume()
    visitors.tasks["a"].cancel()
    await asyncio.wait(visitors.tasks.values())
    assert (visitors.admitted, visitors.room.queue, visitors.room.in_flight) == ([], 0, 0)


async def test_a_room_says_whether_it_was_emptied_in_time() -> None:
    visitors = Visitors(room())
    assert await visitors.room.emptied(0.01)
    await visitors.come("a")
    visitors.room.pause()
    assert not await visitors.room.emptied(0.01)
    emptied = asyncio.create_task(visitors.room.emptied(5.0))
    await visitors.leave("a")
    assert await emptied


async def test_an_answer_that_a_publish_broke_off_waits_for_its_end_in_bounds() -> None:
    paused = room(hold_max_s=0.02)
    paused.pause()
    with pytest.raises(ApiError, match=r"waited for 0\.02 s for new weights"):
        await paused.reopened()
    waiting = asyncio.create_task(paused.reopened())
    await asyncio.sleep(0.001)
    paused.resume()
    await waiting


async def test_a_request_that_fails_frees_its_place() -> None:
    full = room(batch_size=1)
    with pytest.raises(RuntimeError, match="boom"):
        async with full.admit(MAIN):
            raise RuntimeError("boom")
    async with full.admit(MAIN):
        assert full.main_in_flight == 1
