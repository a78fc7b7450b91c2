"""Repeating a request for as long as its failure may pass, up to a deadline."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

import structlog

log = structlog.get_logger()

T = TypeVar("T")

PASSING_STATUSES = frozenset({429, 502, 503, 504})
"""HTTP: full, restarting, or without an engine. It may serve again."""
KEY_STATUSES = frozenset({401, 403})
"""HTTP: the key is wrong, and will be wrong next time."""


class Unavailable(Exception):
    """A failure that may pass by itself. ``retry_after_s``: the earliest time that the server asks for, if it does."""

    def __init__(self, cause: str, retry_after_s: float | None = None) -> None:
        super().__init__(cause)
        self.retry_after_s = retry_after_s


@dataclass(frozen=True)
class Backoff:
    """Waits that double from ``first_s`` to ``longest_s`` seconds, with jitter; no try begins after ``deadline_s``."""

    deadline_s: float
    first_s: float = 0.5
    longest_s: float = 15.0

    async def run(self, what: str, call: Callable[[], Awaitable[T]]) -> T:
        """The result of ``call``, tried again while it raises Unavailable; the last one is raised when time is up."""
        loop = asyncio.get_running_loop()
        end = loop.time() + self.deadline_s
        wait_s = self.first_s
        while True:
            try:
                return await call()
            except Unavailable as error:
                pause_s = max(random.uniform(0.5, 1.0) * wait_s, error.retry_after_s or 0.0)
                if loop.time() + pause_s > end:
                    raise
                log.info("waiting_to_retry", what=what, pause_s=round(pause_s, 2), cause=str(error))
            await asyncio.sleep(pause_s)
            wait_s = min(2 * wait_s, self.longest_s)
