"""What an evaluation found, and how two of them differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self, TypedDict

from pydantic import ValidationError

from openclaw_core.evaluation.record import EvaluationError, Record
from openclaw_core.evaluation.wilson import Interval, newcombe, wilson


class Finding(Record):
    """One answer, as the persona finds it. ``satisfied``: both of its rules are met."""

    persona: str
    message: str
    answer: str
    satisfied: bool
    relevant: bool
    words: int
    truncated: bool
    version: int | None


class Tally(Record):
    """Counts and shares over ``n`` answers, with 95 % Wilson intervals."""

    n: int
    satisfied: int
    relevant: int
    satisfied_share: float
    satisfied_interval: Interval
    relevant_share: float
    relevant_interval: Interval
    mean_words: float
    truncated_share: float

    @property
    def truncated(self) -> int:
        """Answers that hit the length limit."""
        return round(self.truncated_share * self.n)  # exact: the share is a count over n

    @classmethod
    def of(cls, findings: Sequence[Finding]) -> Self:
        """Count one or more findings."""
        n = len(findings)
        satisfied = sum(finding.satisfied for finding in findings)
        relevant = sum(finding.relevant for finding in findings)
        return cls(
            n=n,
            satisfied=satisfied,
            relevant=relevant,
            satisfied_share=satisfied / n,
            satisfied_interval=wilson(satisfied, n),
            relevant_share=relevant / n,
            relevant_interval=wilson(relevant, n),
            mean_words=sum(finding.words for finding in findings) / n,
            truncated_share=sum(finding.truncated for finding in findings) / n,
        )


class EvalReport(Record):
    """One evaluation: the first answers to the held-out problems of all personas, with what they were sampled with."""

    label: str
    created_at: float
    """Unix time, seconds."""
    model: str
    versions: tuple[int, ...]
    """The weights that answered: one version, unless a publish came in between."""
    problems: int
    seed: int
    temperature: float
    max_tokens: int
    total: Tally
    personas: dict[str, Tally]
    samples: tuple[Finding, ...]
    """A few answers of each persona, to read."""

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a stored report. Raises EvaluationError where it is missing or of another form."""
        try:
            return cls.model_validate_json(path.read_bytes())
        except (OSError, ValidationError) as error:
            raise EvaluationError(f"evaluation report {path} cannot be read: {error}") from error


class Share(TypedDict):
    """A share before and after, with 95 % intervals of both and of the difference; JSON-able."""

    before: float
    before_interval: Interval
    after: float
    after_interval: Interval
    difference: float
    difference_interval: Interval


@dataclass(frozen=True, slots=True)
class Difference:
    """A share before and after with Wilson intervals, and the Newcombe interval ``low`` to ``high`` of the difference; 95 %."""

    before: float
    before_interval: Interval
    after: float
    after_interval: Interval
    difference: float
    low: float
    high: float

    @classmethod
    def of(cls, before: int, n_before: int, after: int, n_after: int) -> Self:
        """The difference of two counted shares."""
        p, q = before / n_before, after / n_after
        low, high = newcombe(before, n_before, after, n_after)
        return cls(p, wilson(before, n_before), q, wilson(after, n_after), q - p, low, high)

    def as_share(self) -> Share:
        """For files."""
        return {
            "before": self.before,
            "before_interval": self.before_interval,
            "after": self.after,
            "after_interval": self.after_interval,
            "difference": self.difference,
            "difference_interval": (self.low, self.high),
        }


@dataclass(frozen=True)
class Change:
    """How two tallies differ."""

    satisfied: Difference
    relevant: Difference
    truncated: Difference
    """Answers that were cut off at the length limit."""

    @classmethod
    def of(cls, before: Tally, after: Tally) -> Self:
        """From ``before`` to ``after``."""
        return cls(
            satisfied=Difference.of(before.satisfied, before.n, after.satisfied, after.n),
            relevant=Difference.of(before.relevant, before.n, after.relevant, after.n),
            truncated=Difference.of(before.truncated, before.n, after.truncated, after.n),
        )


@dataclass(frozen=True)
class Comparison(Change):
    """The change over all personas together, and of each."""

    personas: Mapping[str, Change]


def compare(before: EvalReport, after: EvalReport) -> Comparison:
    """How the shares changed. Raises EvaluationError unless both asked the same personas."""
    if before.personas.keys() != after.personas.keys():
        asked = [f"{report.label} asked {', '.join(report.personas)}" for report in (before, after)]
        raise EvaluationError(f"{' but '.join(asked)}: not comparable")
    total = Change.of(before.total, after.total)
    personas = {name: Change.of(before.personas[name], after.personas[name]) for name in before.personas}
    return Comparison(total.satisfied, total.relevant, total.truncated, personas)
