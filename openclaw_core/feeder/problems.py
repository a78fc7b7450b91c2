"""Word problems: endless deterministic streams for training, and a held-out set that no training stream touches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from openclaw_core.config.schema import RunConfig
from openclaw_core.feeder.errors import ProblemError
from openclaw_core.feeder.rules import digit_numbers
from openclaw_core.feeder.sources import ProblemSource, Split, open_source

MIN_NUMBERS = 2
MAX_MISSES = 100_000
"""Candidates in a row without a usable one after which a source counts as exhausted."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One word problem. ``answer`` is for the record only: no persona and no judge is shown it."""

    problem_id: str
    question: str
    answer: str
    number: int
    """Place in its stream, from 1."""


class ProblemStream(Iterator[Problem]):
    """Problems of one split for ever, the same ones for the same seed.

    Usable is a question of at most ``max_chars`` characters that names two numbers or more. Within one pass over the
    source every question comes once. ``position`` counts what was given out; a stream opened at ``position`` goes on
    where another one stopped.
    """

    def __init__(
        self,
        source: ProblemSource,
        split: Split,
        seed: int,
        max_chars: int,
        exclude: frozenset[str] = frozenset(),
        position: int = 0,
    ) -> None:
        self._name = f"{source.name}-{split}-{seed}"
        self._max_chars = max_chars
        self._exclude = exclude
        self._passes = source.passes(split, seed)
        self._usable = self._unique()
        self.position = 0
        for _ in islice(self, position):
            pass

    def __next__(self) -> Problem:
        question, answer = next(self._usable)
        self.position += 1
        return Problem(f"{self._name}-{self.position - 1}", question, answer, number=self.position)

    def _unique(self) -> Iterator[tuple[str, str]]:
        misses = 0
        for candidates in self._passes:
            seen: set[str] = set(self._exclude)
            for question, answer in candidates:
                if question not in seen and self._fits(question):
                    seen.add(question)
                    misses = 0
                    yield question, answer
                else:
                    misses += 1
                if misses >= MAX_MISSES:
                    demand = f"at most {self._max_chars} characters and {MIN_NUMBERS} numbers"
                    raise ProblemError(
                        f"{self._name}: no usable problem among {misses} ({demand}); raise feeder.max_question_chars"
                    )

    def _fits(self, question: str) -> bool:
        return len(question) <= self._max_chars and len(digit_numbers(question)) >= MIN_NUMBERS


def held_out_problems(config: RunConfig) -> tuple[Problem, ...]:
    """The ``evaluation.problems`` problems of the evaluation. Raises ProblemError."""
    source = open_source(config.feeder.problems)
    stream = ProblemStream(source, "held_out", config.evaluation.seed, config.feeder.max_question_chars)
    problems = tuple(islice(stream, config.evaluation.problems))
    usable = len({problem.question for problem in problems})
    if usable < len(problems):
        raise ProblemError(f"evaluation.problems={len(problems)}, but {config.feeder.problems} holds only {usable} usable ones")
    return problems


def training_problems(config: RunConfig, position: int = 0) -> ProblemStream:
    """The feeder's stream from ``position`` on, without the held-out questions. Raises ProblemError."""
    return ProblemStream(
        open_source(config.feeder.problems),
        "train",
        config.feeder.seed,
        config.feeder.max_question_chars,
        exclude=frozenset(problem.question for problem in held_out_problems(config)),
        position=position,
    )
