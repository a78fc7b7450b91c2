"""A judge without a model: it reads the next state's words in a table (prompts/scripted.yaml).

It sees what an LLM judge sees, the answer, the next state and its role, and writes what an LLM judge writes, so that
the parser and the vote count behind it are the real ones.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Annotated, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from openclaw_core.judge.client import JudgeError, JudgeReply
from openclaw_core.judge.parsing import HINT_END, HINT_START
from openclaw_core.types import NextState, Question

TABLE = Path(__file__).parent / "prompts" / "scripted.yaml"

Texts = Annotated[tuple[str, ...], Field(min_length=1)]


class Complaint(BaseModel):
    """What people say when they mind something, and the hints for it: vote i gives hint i."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    about: str
    phrases: Texts
    hints: Texts


class ScriptedTable(BaseModel):
    """The phrases that the scripted judge understands. Complaints are in the order in which their hints are joined."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    version: int
    praise: Texts
    complaints: Annotated[tuple[Complaint, ...], Field(min_length=1)]

    @classmethod
    def load(cls, path: Path = TABLE) -> Self:
        """Raises JudgeError where the file is no such table."""
        try:
            return cls.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")))
        except (OSError, yaml.YAMLError, ValidationError) as error:
            raise JudgeError(f"the scripted judge's table {path} cannot be read: {error}") from error


class ScriptedJudge:
    """Thanks → good; a known complaint → bad, with hints; anything else, tool results included → neither."""

    def __init__(self, table: ScriptedTable | None = None) -> None:
        self.table = table or ScriptedTable.load()
        self.model, self.prompt_version = "scripted", f"scripted {self.table.version}"

    async def vote(self, question: Question, answer: str, next_state: NextState, vote_index: int) -> JudgeReply:
        """One vote (JudgeClient)."""
        complaints = [item for item in self.table.complaints if _says(next_state, item.phrases)]
        if question is Question.REWARD:
            return JudgeReply(self._reward(complaints, next_state))
        return JudgeReply(self._hint(complaints, vote_index))

    async def close(self) -> None:
        """Nothing is open."""

    def _reward(self, complaints: list[Complaint], next_state: NextState) -> str:
        if complaints:
            return f"The user asks for a change: {_topics(complaints)}.\n\\boxed{{-1}}"
        if _says(next_state, self.table.praise):
            return "The user is content and goes on.\n\\boxed{1}"
        return "The next state does not tell whether the answer was good.\n\\boxed{0}"

    def _hint(self, complaints: list[Complaint], vote_index: int) -> str:
        if not complaints:
            return "The next state shows nothing that the answer should have known.\n\\boxed{-1}"
        hint = " ".join(item.hints[vote_index % len(item.hints)] for item in complaints)
        return f"The user minds {_topics(complaints)}.\n\\boxed{{1}}\n{HINT_START}{hint}{HINT_END}"


def _says(next_state: NextState, phrases: tuple[str, ...]) -> bool:
    """Whether a user's message has one of the phrases as whole words, whatever their case."""
    if next_state.role != "user":
        return False
    return _whole_words(phrases).search(next_state.text) is not None


@cache
def _whole_words(phrases: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile(rf"\b(?:{'|'.join(map(re.escape, phrases))})\b", re.IGNORECASE)


def _topics(complaints: list[Complaint]) -> str:
    return " and ".join(item.about for item in complaints)
