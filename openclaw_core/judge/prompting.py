"""The prompts of LLM judges, out of versioned files: prompts/reward.md and prompts/hint.md."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from openclaw_core.judge.client import JudgeError
from openclaw_core.types import Message, NextState, Question, Turn

PROMPTS = Path(__file__).parent / "prompts"

_FILE = re.compile(r"---\nversion: (\d+)\n---\n# System\n(.+)\n# User\n(.+)", re.DOTALL)
_SLOT = re.compile(r"\{(answer|role|next_state)\}")


def shown_answer(turn: Turn) -> str:
    """A turn's answer as a judge gets to see it: its text, and each tool call on a line of its own."""
    functions = [call.get("function", {}) for call in turn.tool_calls]
    calls = [f"[tool call] {function.get('name', '')} {function.get('arguments', '')}" for function in functions]
    return "\n".join(filter(None, [turn.answer, *calls]))


@dataclass(frozen=True, slots=True)
class JudgePrompt:
    """What an LLM judge is told. ``user`` has the slots ``{answer}``, ``{role}`` and ``{next_state}``."""

    version: int
    system: str
    user: str

    @classmethod
    def load(cls, question: Question, directory: Path = PROMPTS) -> Self:
        """The prompt of one question. Raises JudgeError where its file is missing or has another form."""
        path = directory / f"{question.value}.md"
        try:
            match = _FILE.fullmatch(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise JudgeError(f"the judge's prompt {path} cannot be read: {error}") from error
        if match is None:
            raise JudgeError(f"{path} is not of the form: front matter with a version, '# System', '# User'")
        version, system, user = match.groups()
        if set(_SLOT.findall(user)) != {"answer", "role", "next_state"}:
            raise JudgeError(f"the user part of {path} must have the slots {{answer}}, {{role}} and {{next_state}}")
        return cls(version=int(version), system=system.strip(), user=user.strip())

    def messages(self, answer: str, next_state: NextState) -> list[Message]:
        """The chat that asks about one turn. Slots are filled in one pass: texts that look like slots stay as they are."""
        values = {"answer": answer, "role": next_state.role, "next_state": next_state.text}
        user = _SLOT.sub(lambda slot: values[slot[1]], self.user)
        return [{"role": "system", "content": self.system}, {"role": "user", "content": user}]


@dataclass(frozen=True, slots=True)
class JudgePrompts:
    """The prompts of all questions."""

    of: dict[Question, JudgePrompt]

    @classmethod
    def load(cls, directory: Path = PROMPTS) -> Self:
        """Raises JudgeError as ``JudgePrompt.load`` does."""
        return cls({question: JudgePrompt.load(question, directory) for question in Question})

    @property
    def version(self) -> str:
        """All versions in one line, for the ledger."""
        return ", ".join(f"{question.value} {prompt.version}" for question, prompt in self.of.items())

    def messages(self, question: Question, answer: str, next_state: NextState) -> list[Message]:
        """The chat that asks ``question`` about one turn."""
        return self.of[question].messages(answer, next_state)
