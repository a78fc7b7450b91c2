"""Word problems: deterministic streams for training, and a held-out set that no training stream touches."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from openclaw_core.config.schema import RunConfig
from openclaw_core.feeder.errors import ProblemError
from openclaw_core.feeder.sources import ProblemSource, Split, open_source
from openclaw_core.feeder.texts import digit_numbers

MIN_NUMBERS = 2
MAX_MISSES = 100_000
"""Candidates in a row without a usable one after which a source counts as exhausted."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One word problem. ``answer`` is for the record and for guards: no persona, no judge and no assistant is shown it."""

    problem_id: str
    question: str
    answer: str
    number: int
    """Place in its stream, from 1."""


class ProblemStream(Iterator[Problem]):
    """Problems of one split, the same ones for the same seed.

    Usable is a question of at most ``max_chars`` characters that names two numbers or more. Within one pass over the
    source every question comes once; after ``epochs`` passes the stream ends (0: never). ``position`` counts what was
    given out; a stream opened at ``position`` goes on where another one stopped. Of ``shards`` streams each gives out
    the problems whose place in the whole is its own ``shard`` modulo ``shards``; numbers and positions are the whole's.
    """

    def __init__(
        self,
        source: ProblemSource,
        split: Split,
        seed: int,
        max_chars: int,
        exclude: frozenset[str] = frozenset(),
        position: int = 0,
        *,
        shard: int = 0,
        shards: int = 1,
        epochs: int = 0,
    ) -> None:
        """Raises ProblemError where ``epochs`` are asked of a source without an end."""
        if epochs and source.endless:
            raise ProblemError(f"{source.name} is made as it is asked for and has no end: set feeder.epochs=0, not {epochs}")
        self._name = f"{re.sub(r'[^A-Za-z0-9_.]+', '_', source.name)}-{split}-{seed}"  # goes into HTTP headers
        self._max_chars = max_chars
        self._exclude = exclude
        self._passes = islice(source.passes(split, seed), epochs or None)
        self._usable = self._unique()
        self._shard, self._shards = shard, shards
        self.position = 0
        for _ in islice(self._usable, position):
            self.position += 1

    def __next__(self) -> Problem:
        for question, answer in self._usable:
            self.position += 1
            if (self.position - 1) % self._shards == self._shard:
                return Problem(f"{self._name}-{self.position - 1}", question, answer, number=self.position)
        raise StopIteration

    def _unique(self) -> Iterator[tuple[str, str]]:
        misses = 0
        for candidates in self._passes:
            seen: set[str] = set(self._exclude)
            usable = 0
            for question, answer in candidates:
                if question not in seen and self._fits(question):
                    seen.add(question)
                    misses, usable = 0, usable + 1
                    yield question, answer
                else:
                    misses += 1
                if misses >= MAX_MISSES:
                    raise self._useless(misses)
            if not usable:
                raise self._useless(misses)

    def _useless(self, misses: int) -> ProblemError:
        demand = f"at most {self._max_chars} characters and {MIN_NUMBERS} numbers"
        return ProblemError(f"{self._name}: no usable problem among {misses} ({demand}); raise feeder.max_question_chars")

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
    feeder = config.feeder
    return ProblemStream(
        open_source(feeder.problems),
        "train",
        feeder.seed,
        feeder.max_question_chars,
        exclude=frozenset(problem.question for problem in held_out_problems(config)),
        position=position,
        shard=feeder.shard,
        shards=feeder.shards,
        epochs=feeder.epochs,
    )
