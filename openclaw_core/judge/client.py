"""The one interface of every judge: a question about an answer and its next state in, raw text out."""

from __future__ import annotations

from typing import Protocol

from openclaw_core.errors import OpenClawError
from openclaw_core.types import NextState, Question


class JudgeError(OpenClawError):
    """A judge could not do what it was asked; the message names the judge, the question and the cause."""


class JudgeUnavailable(JudgeError):
    """Too few valid votes for a verdict. The turn stays pending and is to be judged again later."""


class JudgeClient(Protocol):
    """Who answers: a scripted table, our own inference engines, or any OpenAI-compatible endpoint."""

    async def vote(self, question: Question, answer: str, next_state: NextState, vote_index: int) -> str:
        """One judge's raw answer, to be read by ``parsing.parse_vote``.

        ``vote_index`` counts a question's votes from 0; a client may use it to make them differ.

        Raises:
            JudgeError: no answer was to be had.
        """
        ...
