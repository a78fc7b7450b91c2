"""What is counted of the judge's work: for a step's metrics (docs/METRICS.md), and since the start for /metrics."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from openclaw_core.judge.voting import agreement
from openclaw_core.types import Judgement, Vote

_REMEMBERED = 10_000
"""Latencies that a percentile is taken of: the last ones."""


@dataclass
class Tally:
    """Since one moment. ``with_majority`` of ``valid`` votes agreed, over turns that got a verdict."""

    answered: int = 0
    unparsable: int = 0
    failed: int = 0
    seconds_sum: float = 0.0
    seconds: deque[float] = field(default_factory=lambda: deque(maxlen=_REMEMBERED))
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    with_majority: int = 0
    valid: int = 0
    unavailable: int = 0
    refused: Counter[str] = field(default_factory=Counter[str])

    def vote(self, vote: Vote) -> None:
        """A call ended: with an answer, which took ``vote.seconds``, or without."""
        if vote.seconds is None:
            self.failed += 1
            return
        self.answered += 1
        self.unparsable += vote.value is None
        self.seconds.append(vote.seconds)
        self.seconds_sum += vote.seconds
        if vote.prompt_tokens is not None:
            self.prompt_tokens = (self.prompt_tokens or 0) + vote.prompt_tokens
        if vote.completion_tokens is not None:
            self.completion_tokens = (self.completion_tokens or 0) + vote.completion_tokens

    def verdict(self, judgement: Judgement) -> None:
        """A turn was judged."""
        same, valid = agreement(judgement.votes)
        self.with_majority += same
        self.valid += valid
        self.refused.update(reason for _, reason in judgement.refused)

    def metrics(self) -> dict[str, Any]:
        """The keys ``judge/...`` of a step; None where there is nothing to tell."""
        return {
            "judge/agreement": self.with_majority / self.valid if self.valid else None,
            "judge/latency_s": self.seconds_sum / self.answered if self.answered else None,
            "judge/latency_p95_s": percentile(self.seconds, 0.95),
            "judge/parse_failure_share": self.unparsable / self.answered if self.answered else None,
            "judge/failed_calls": self.failed,
            "judge/prompt_tokens": self.prompt_tokens,
            "judge/completion_tokens": self.completion_tokens,
            "judge/unavailable": self.unavailable,
            "judge/hints_refused": dict(sorted(self.refused.items())),
        }


class JudgeStats:
    """``step``: since the last step's metrics were made. ``total``: since the start of the service."""

    def __init__(self) -> None:
        self.step, self.total = Tally(), Tally()

    def vote(self, vote: Vote) -> None:
        """A call ended."""
        self.step.vote(vote)
        self.total.vote(vote)

    def verdict(self, judgement: Judgement) -> None:
        """A turn was judged."""
        self.step.verdict(judgement)
        self.total.verdict(judgement)

    def refused(self, reason: str) -> None:
        """A hint was refused after its turn had been judged."""
        self.step.refused[reason] += 1
        self.total.refused[reason] += 1

    def unavailable(self) -> None:
        """A turn was asked about, and got too few votes."""
        self.step.unavailable += 1
        self.total.unavailable += 1

    def take(self) -> dict[str, Any]:
        """The step's metrics; the next step's begin now."""
        metrics, self.step = self.step.metrics(), Tally()
        return metrics


def percentile(values: Sequence[float], share: float) -> float | None:
    """The smallest value that at least ``share`` of all do not exceed; None of nothing."""
    if not values:
        return None
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, -int(-share * len(ordered) // 1) - 1))]
