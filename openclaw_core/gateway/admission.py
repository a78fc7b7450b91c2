"""The waiting room: requests wait here, in order, rather than fail while weights are published or a batch is full."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from openclaw_core.gateway.errors import held_too_long
from openclaw_core.types import TurnType


@dataclass(eq=False, slots=True)
class _Waiter:
    turn_type: TurnType
    admitted: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class WaitingRoom:
    """Admits requests to the engines. Belongs to one event loop.

    With a ``batch_size`` (max_staleness 0) main turns are admitted only while fewer than that are in flight or have a
    place in the batch already; ``occupancy`` counts the latter, the turns that are being judged and those that are ready.
    Side turns wait for ``pause`` only.
    """

    def __init__(
        self,
        *,
        hold_max_s: float,
        hold_max_requests: int,
        batch_size: int | None = None,
        occupancy: Callable[[], int] = lambda: 0,
    ) -> None:
        self._batch_size = batch_size
        self._occupancy = occupancy
        self._hold_max_s = hold_max_s
        self._hold_max_requests = hold_max_requests
        self._paused = False
        self._waiting: list[_Waiter] = []
        self._in_flight: Counter[TurnType] = Counter()
        self._empty = asyncio.Event()
        self._empty.set()
        self._open = asyncio.Event()
        self._open.set()

    @property
    def in_flight(self) -> int:
        """Admitted requests that are not answered yet."""
        return self._in_flight.total()

    @property
    def main_in_flight(self) -> int:
        """Those of them that are main turns."""
        return self._in_flight[TurnType.MAIN]

    @property
    def queue(self) -> int:
        """Requests that wait."""
        return len(self._waiting)

    @property
    def accepting(self) -> bool:
        """Whether the gateway is neither paused nor full."""
        return not self._paused and self.queue < self._hold_max_requests

    @asynccontextmanager
    async def admit(self, turn_type: TurnType) -> AsyncIterator[None]:
        """Wait for admission, then be in flight. Raises ApiError (503) once the room's bounds are passed."""
        await self._enter(turn_type)
        try:
            yield
        finally:
            self._leave(turn_type)

    def pause(self) -> None:
        """Admit nobody until ``resume``: weights are being published."""
        self._paused = True
        self._open.clear()

    def resume(self) -> None:
        """Let go on what was in flight, and admit again in the order of arrival."""
        self._paused = False
        self._open.set()
        self.notify()

    async def reopened(self) -> None:
        """For a request in flight that a publish broke off: wait for its end. Raises ApiError (503) after hold_max_s."""
        try:
            async with asyncio.timeout(self._hold_max_s):
                await self._open.wait()
        except TimeoutError:
            raise held_too_long(f"The answer waited for {self._hold_max_s:g} s for new weights; try again later.") from None

    def notify(self) -> None:
        """Something that admission depends on has changed: see who may go in."""
        for waiter in list(self._waiting):
            if self._may_enter(waiter.turn_type):
                self._waiting.remove(waiter)
                self._in_flight[waiter.turn_type] += 1
                self._empty.clear()
                waiter.admitted.set_result(None)

    async def emptied(self, deadline_s: float) -> bool:
        """Whether all that is in flight has ended before the deadline; meant for a paused room."""
        try:
            async with asyncio.timeout(deadline_s):
                await self._empty.wait()
        except TimeoutError:
            return False
        return True

    def _may_enter(self, turn_type: TurnType) -> bool:
        if self._paused:
            return False
        if self._batch_size is None or turn_type is not TurnType.MAIN:
            return True
        return self.main_in_flight + self._occupancy() < self._batch_size

    async def _enter(self, turn_type: TurnType) -> None:
        waiter = _Waiter(turn_type)
        self._waiting.append(waiter)
        self.notify()
        if waiter.admitted.done():
            return
        if self.queue > self._hold_max_requests:
            self._waiting.remove(waiter)
            raise held_too_long(f"{self._hold_max_requests} requests are waiting already; try again later.")
        started = time.monotonic()
        try:
            await asyncio.wait({waiter.admitted}, timeout=self._hold_max_s)
        except asyncio.CancelledError:
            self._give_up(waiter)
            raise
        if not waiter.admitted.done():
            self._give_up(waiter)
            raise held_too_long(
                f"The request waited for {time.monotonic() - started:.0f} s without being admitted; try again later."
            )

    def _give_up(self, waiter: _Waiter) -> None:
        """Leave the room; also where admission and cancellation came in the same moment."""
        if waiter.admitted.done():
            self._leave(waiter.turn_type)
        else:
            self._waiting.remove(waiter)

    def _leave(self, turn_type: TurnType) -> None:
        self._in_flight[turn_type] -= 1
        if not self.in_flight:
            self._empty.set()
        self.notify()
