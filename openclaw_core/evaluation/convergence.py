"""Sessions to convergence: how many sessions a persona needs until first answers meet its rule several times in a row.

A trial is one learner seen by every persona: a training run, or one seed asked beside a run. Counting is the same for all.
The number includes the sessions of the streak itself, so the least possible is ``consecutive`` (3: the paper's setting).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from statistics import fmean, stdev
from typing import Self

from openclaw_core.config.feedback import EvaluationConfig
from openclaw_core.evaluation.record import EvaluationError, Record

Observed = bool | None
"""Whether a session's first answer met the persona's rule; None where nobody knows (a side turn that was skipped)."""


class State(StrEnum):
    """How a persona's count ended."""

    CONVERGED = "converged"
    CAPPED = "capped"
    """There were ``max_sessions`` sessions, or more, and none of the first so many ended a streak: counts as the cap."""
    CENSORED = "censored"
    """There were too few sessions to tell: the true number is ``at_least`` or more, and is not known."""


class Convergence(Record):
    """One persona in one trial."""

    state: State
    at_least: int
    """The number of sessions where it is known; where censored, the smallest that more sessions could still give."""
    seen: int
    """Sessions that were counted, ``max_sessions`` at most."""
    unknown: int = 0
    """Those of them whose result nobody knows; each ends a streak, so that the number errs on the high side."""

    @property
    def sessions(self) -> int | None:
        """The number of sessions, ``max_sessions`` where capped; None where censored."""
        return None if self.state is State.CENSORED else self.at_least

    def __str__(self) -> str:
        words = {State.CONVERGED: f"{self.at_least}", State.CAPPED: f"{self.at_least} (cap)"}
        return words.get(self.state, f"≥ {self.at_least} (not in {self.seen})")


def count_sessions(first_answers: Sequence[Observed], consecutive: int, max_sessions: int) -> Convergence:
    """Sessions until ``consecutive`` first answers in a row met the rule.

    ``first_answers``: one per session, in the order in which the sessions began. Those after ``max_sessions`` do not count.
    Raises EvaluationError unless 1 <= consecutive <= max_sessions.
    """
    if not 1 <= consecutive <= max_sessions:
        raise EvaluationError(
            f"evaluation.consecutive={consecutive} and evaluation.max_sessions={max_sessions}: needed is "
            "1 <= consecutive <= max_sessions"
        )
    counted = first_answers[:max_sessions]
    streak = 0
    for number, satisfied in enumerate(counted, 1):
        streak = streak + 1 if satisfied else 0
        if streak == consecutive:
            known = counted[:number]
            return Convergence(state=State.CONVERGED, at_least=number, seen=number, unknown=known.count(None))
    seen, unknown = len(counted), counted.count(None)
    if seen == max_sessions:
        return Convergence(state=State.CAPPED, at_least=max_sessions, seen=seen, unknown=unknown)
    least = min(seen + consecutive - streak, max_sessions)
    return Convergence(state=State.CENSORED, at_least=least, seen=seen, unknown=unknown)


class Spread(Record):
    """Mean and spread over the trials."""

    n: int
    mean: float
    sd: float | None
    """Sample standard deviation; None for one trial."""
    lower_bound: bool
    """A censored trial is in the mean with the least that it can be: the true mean is this or more."""
    not_converged: int
    """Trials that were capped or censored."""

    def __str__(self) -> str:
        return f"{'≥ ' if self.lower_bound else ''}{self.mean:.1f}" + ("" if self.sd is None else f" ± {self.sd:.1f}")


def spread(trials: Sequence[Sequence[Convergence]]) -> Spread:
    """Over trials, each given by the counts of one persona or of several; of several, their average is the trial's number."""
    values = [fmean(count.at_least for count in counts) for counts in trials]
    states = [{count.state for count in counts} for counts in trials]
    return Spread(
        n=len(values),
        mean=fmean(values),
        sd=stdev(values) if len(values) > 1 else None,
        lower_bound=any(State.CENSORED in found for found in states),
        not_converged=sum(found != {State.CONVERGED} for found in states),
    )


class Trial(Record):
    """One learner: a run's own sessions, or one seed's side turns beside a run."""

    name: str
    personas: dict[str, Convergence]


class SessionsReport(Record):
    """Sessions to convergence over one or more trials."""

    consecutive: int
    max_sessions: int
    trials: tuple[Trial, ...]
    personas: dict[str, Spread]
    joint: Spread
    """The average over the personas, trial by trial: the joint average of the paper's table."""

    @classmethod
    def of(cls, trials: Sequence[tuple[str, Mapping[str, Sequence[Observed]]]], rule: EvaluationConfig) -> Self:
        """Count trials, given as (name, first answers by persona). Raises EvaluationError unless all have the same personas."""
        if not trials:
            raise EvaluationError("sessions to convergence need one trial at least: a run, or a seed that was asked")
        (first_name, first), *others = trials
        if not first:
            raise EvaluationError(f"{first_name} has no personas, so there is nothing to count")
        for name, answers in others:
            if answers.keys() != first.keys():
                raise EvaluationError(
                    f"{first_name} has the personas {', '.join(first)}, but {name} has {', '.join(answers)}: not comparable"
                )
        counted = tuple(
            Trial(
                name=name,
                personas={persona: count_sessions(answers[persona], rule.consecutive, rule.max_sessions) for persona in first},
            )
            for name, answers in trials
        )
        return cls(
            consecutive=rule.consecutive,
            max_sessions=rule.max_sessions,
            trials=counted,
            personas={persona: spread([[trial.personas[persona]] for trial in counted]) for persona in first},
            joint=spread([list(trial.personas.values()) for trial in counted]),
        )
