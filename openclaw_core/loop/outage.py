"""Is the judge there? Since when a question has had no quorum, why, and when that becomes an alert."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from openclaw_core.types import Question

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class _Since:
    at: float
    cause: str


class Outage:
    """``away_s``: without a quorum on a question for so long, the judge is away. ``model`` and ``policy`` are for messages."""

    def __init__(self, away_s: float, model: str, policy: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._away_s, self._model, self._policy, self._clock = away_s, model, policy, clock
        self._since: dict[Question, _Since] = {}
        self._denied = False
        self._alarm: asyncio.TimerHandle | None = None
        self._alerted = False
        self.over = asyncio.Event()
        """Set while no question is without a quorum; whoever pauses may go on at once when it is set."""
        self.over.set()

    def failed(self, missing: tuple[Question, ...], cause: str, denied: bool) -> None:
        """A turn got no quorum on ``missing``. ``denied``: the judge did not accept the key, which only a person mends."""
        for question in Question:
            if question not in missing:
                self._served(question)
            elif question in self._since:
                self._since[question].cause = cause
            else:
                self._since[question] = _Since(self._clock(), cause)
        if self._alarm is None and not self._alerted:
            self._alarm = asyncio.get_running_loop().call_later(self._away_s, self._alert)
        self.over.clear()
        if denied and not self._denied:
            self._denied = True
            log.error("judge_denied", judge=self._model, reason=cause)

    def served(self) -> None:
        """A turn got its quorum on both questions."""
        for question in Question:
            self._served(question)
        self._denied = False

    def away(self, question: Question) -> float:
        """Seconds since a question was left without a quorum, if no turn got one since; else 0."""
        since = self._since.get(question)
        return 0.0 if since is None else self._clock() - since.at

    @property
    def seconds(self) -> float:
        """The longest of both questions."""
        return max(map(self.away, Question))

    @property
    def alert(self) -> str | None:
        """In words, once it is one: at once for a key that is not accepted, else after ``away_s``."""
        if not self._since or not (self._denied or self.seconds >= self._away_s):
            return None
        return f"judge_unavailable: {self.describe()}; judge.unavailable={self._policy}"

    def describe(self) -> str | None:
        """What is missing, for how long, and why; None while the judge is there."""
        if not self._since:
            return None
        question = max(self._since, key=self.away)
        return (
            f"the judge {self._model} has given no quorum on the {question} question for {self.away(question):.0f} s "
            f"({self._since[question].cause})"
        )

    def stop(self) -> None:
        """Forget the alarm that is set."""
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None

    def _served(self, question: Question) -> None:
        if self._since.pop(question, None) is None or self._since:
            return
        self.stop()
        self.over.set()
        if self._alerted:
            log.info("judge_back", judge=self._model)
        self._alerted = False

    def _alert(self) -> None:
        self._alarm = None
        self._alerted = True
        log.error("judge_away", judge=self._model, reason=self.describe(), policy=self._policy)
