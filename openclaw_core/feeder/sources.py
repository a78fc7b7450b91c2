"""Where word problems come from: a generator, or a file in the form of GSM8K."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal, Protocol

from openclaw_core.feeder.errors import ProblemError

Split = Literal["train", "held_out"]
Candidate = tuple[str, str]
"""Question and answer."""


class ProblemSource(Protocol):
    """Gives passes over its problems for ever; a pass may itself be endless."""

    @property
    def name(self) -> str:
        """Short name, part of the problems' ids."""
        ...

    def passes(self, split: Split, seed: int) -> Iterator[Iterator[Candidate]]:
        """One iterator a pass, all determined by split and seed. Raises ProblemError."""
        ...


@dataclass(frozen=True)
class GsmSymbolic:
    """Grade-school templates with drawn numbers (reasoning-gym's ``gsm_symbolic``): one endless pass.

    Splits and seeds draw from ranges of their own. The templates are the same in all of them.
    """

    name: str = "gsm_symbolic"

    CHUNK = 400
    SEED_STRIDE = 10_000_000
    """Items before one seed runs into the next: item i of a data set is drawn from ``Random(seed + i)``."""
    HELD_OUT_BASE = 1 << 48
    SUFFIXES = (" Give the result as your final answer.", " Do not include units.")

    def passes(self, split: Split, seed: int) -> Iterator[Iterator[Candidate]]:
        yield self._items((self.HELD_OUT_BASE if split == "held_out" else 0) + seed * self.SEED_STRIDE)

    def _items(self, base: int) -> Iterator[Candidate]:
        try:
            import reasoning_gym
        except ImportError as error:
            raise ProblemError("problems=gsm_symbolic needs the package reasoning-gym; install the extra 'cpu'") from error
        while True:
            for item in reasoning_gym.create_dataset("gsm_symbolic", size=self.CHUNK, seed=base):
                question = item["question"]
                for suffix in self.SUFFIXES:
                    question = question.replace(suffix, "")
                yield question.strip(), item["answer"]
            base += self.CHUNK


@dataclass(frozen=True)
class GsmFile:
    """A JSONL file with ``question`` and ``answer`` (the result after ``####``): endless passes, each shuffled anew.

    Both splits come from the same rows; a training stream excludes the held-out questions by their text.
    """

    path: Path

    @property
    def name(self) -> str:
        return self.path.stem

    def passes(self, split: Split, seed: int) -> Iterator[Iterator[Candidate]]:
        rng = random.Random(f"{split}:{seed}")
        while True:
            yield iter(rng.sample(self._rows, len(self._rows)))

    @cached_property
    def _rows(self) -> list[Candidate]:
        try:
            lines = self.path.read_text(encoding="utf-8").splitlines()
        except OSError as error:
            raise ProblemError(f"problem file {self.path} cannot be read: {error}") from error
        rows = [self._row(number, line) for number, line in enumerate(lines, 1) if line.strip()]
        if not rows:
            raise ProblemError(f"problem file {self.path} holds no problems")
        return rows

    def _row(self, number: int, line: str) -> Candidate:
        try:
            row = json.loads(line)
            question, solution = row["question"], row["answer"]
            return question.strip(), solution.rpartition("####")[2].strip().replace(",", "")
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ProblemError(
                f'{self.path}, line {number}: not of the form {{"question": "...", "answer": "... #### 42"}}'
            ) from error


def open_source(spec: str) -> ProblemSource:
    """``gsm_symbolic``, or ``file://<path>.jsonl`` for a file in the form of GSM8K. Raises ProblemError."""
    if spec == "gsm_symbolic":
        return GsmSymbolic()
    if spec.startswith("file://"):
        return GsmFile(Path(spec.removeprefix("file://")))
    raise ProblemError(f"no problem source {spec!r}; there are: gsm_symbolic, file://<path>.jsonl (the form of GSM8K)")
