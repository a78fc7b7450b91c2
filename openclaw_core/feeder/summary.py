"""What a feeder did, for people and programs."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any, Literal

Ended = Literal["stopped", "finished", "exhausted"]
"""stopped: it was told to. finished: the service has done its steps. exhausted: the epochs are over."""


@dataclass(frozen=True, slots=True)
class FeederSummary:
    """What a feeder did until it ended. ``turns`` counts answers."""

    ended: Ended
    seconds: float = 0.0
    tasks: int = 0
    sessions: int = 0
    turns: int = 0
    satisfied: int = 0
    """Sessions whose last answer met the persona's rules."""
    satisfied_first: int = 0
    """Sessions whose first answer did."""
    done: int = 0
    """Sessions that the person ended, having what they wanted."""
    failures: int = 0
    """Tasks that broke off."""

    def rates(self) -> dict[str, float | None]:
        """Shares and throughput; None where there was no session."""
        sessions = self.sessions or None
        return {
            "satisfied_share": sessions and self.satisfied_first / sessions,
            "turns_per_session": sessions and self.turns / sessions,
            "sessions_per_minute": 60 * self.sessions / self.seconds if self.seconds else None,
        }

    def as_json(self) -> dict[str, Any]:
        """All of it, numbers rounded to what can be read."""
        rates = {name: value if value is None else round(value, 3) for name, value in self.rates().items()}
        return asdict(self) | {"seconds": round(self.seconds, 1)} | rates


class Counts:
    """Counts while the feeder runs, by the names of FeederSummary."""

    def __init__(self) -> None:
        self._counter: Counter[str] = Counter()
        self._began = time.monotonic()

    def add(self, **counts: int) -> None:
        """Add to the counts."""
        self._counter.update(counts)

    def summary(self, ended: Ended) -> FeederSummary:
        """The counts so far."""
        return FeederSummary(ended, time.monotonic() - self._began, **self._counter)
