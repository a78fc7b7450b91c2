"""The trials beside a run, on disk: what each seed was answered in each session, one line a session."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from pydantic import ValidationError

from openclaw_core.config.feedback import EvaluationConfig
from openclaw_core.evaluation.convergence import Observed, SessionsReport, count_sessions
from openclaw_core.evaluation.record import EvaluationError, Record

TRIALS_FILE = "trials.jsonl"


class Asked(Record):
    """One seed's session: the answer to its first message, or why it was skipped."""

    seed: int
    """Number of the trial, from 1."""
    persona: str
    session: int
    """Number of the persona's session, from 1: asked when the run's own session of this number had begun."""
    version: int
    """Weights that were served then."""
    satisfied: Observed
    """Whether the answer meets style and relevance rule; None where it was skipped."""
    relevant: Observed = None
    truncated: bool | None = None
    quote: str | None = None
    """The answer's first words, which the next persona may quote; None where nothing was asked."""
    skipped: str = ""
    """Why nothing was asked, or why the answer does not count."""

    @property
    def key(self) -> tuple[int, str, int]:
        """What makes it unique."""
        return self.seed, self.persona, self.session


class Trials:
    """What is known so far. One writer; a reader opens the same file."""

    def __init__(self, directory: Path, personas: Sequence[str], rule: EvaluationConfig) -> None:
        self.personas = tuple(personas)
        self.rule = rule
        self._file = directory / TRIALS_FILE
        self._asked: dict[tuple[int, str, int], Asked] = {}
        self._whole: int | None = None
        """Length in bytes of the file's whole lines, where a part of one follows: its writer was killed."""

    @classmethod
    def open(cls, directory: Path, personas: Sequence[str], rule: EvaluationConfig) -> Self:
        """Those that ``directory`` holds; none where it holds no file. Raises EvaluationError for a file of another form."""
        trials = cls(directory, personas, rule)
        if trials._file.exists():
            *lines, rest = trials._file.read_bytes().split(b"\n")
            for number, line in enumerate(lines, 1):
                asked = _parse(line, trials._file, number)
                trials._asked[asked.key] = asked
            trials._whole = sum(len(line) + 1 for line in lines) if rest else None
        return trials

    def add(self, asked: Asked) -> None:
        """Note a session and store it."""
        self._asked[asked.key] = asked
        self._file.parent.mkdir(parents=True, exist_ok=True)
        if self._whole is not None:
            os.truncate(self._file, self._whole)
            self._whole = None
        with self._file.open("a", encoding="utf-8") as file:
            file.write(asked.model_dump_json() + "\n")

    def find(self, seed: int, persona: str, session: int) -> Asked | None:
        """A session, if it was asked or skipped already."""
        return self._asked.get((seed, persona, session))

    def settled(self, seed: int, persona: str) -> bool:
        """Whether more sessions can change nothing: the persona has converged, or was asked up to the cap."""
        count = count_sessions(self._answers(seed, persona), self.rule.consecutive, self.rule.max_sessions)
        return count.sessions is not None

    @property
    def skipped(self) -> int:
        """Sessions that nobody knows the answer of."""
        return sum(bool(asked.skipped) for asked in self._asked.values())

    def answers(self) -> dict[str, dict[str, list[Observed]]]:
        """Trial → persona → whether first answers met the rule, for the seeds that were asked."""
        seeds = sorted({seed for seed, _, _ in self._asked})
        return {f"seed {seed}": {persona: self._answers(seed, persona) for persona in self.personas} for seed in seeds}

    def report(self) -> SessionsReport | None:
        """Sessions to convergence over the seeds; None before any was asked."""
        answers = self.answers()
        return SessionsReport.of(list(answers.items()), self.rule) if answers else None

    def _answers(self, seed: int, persona: str) -> list[Observed]:
        """Of the sessions from the first on, without a gap: what comes after one that is still being asked waits for it."""
        answers: list[Observed] = []
        while (asked := self.find(seed, persona, len(answers) + 1)) is not None:
            answers.append(asked.satisfied)
        return answers


def _parse(line: bytes, file: Path, number: int) -> Asked:
    try:
        return Asked.model_validate_json(line)
    except ValidationError as error:
        raise EvaluationError(f"{file}, line {number} cannot be read: {error}") from error
