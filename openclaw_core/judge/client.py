"""The one interface of every judge: a question about an answer and its next state in, raw text out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from openclaw_core.errors import OpenClawError
from openclaw_core.types import NextState, Question, Vote


class JudgeError(OpenClawError):
    """A judge could not do what it was asked; the message names the judge, the question and the cause.

    ``retry_after_s``: the earliest time at which it wants to be asked again, if it said so.
    """

    def __init__(self, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class JudgeRefused(JudgeError):
    """The judge understood and said no (400 and its like): the same request would be refused again. Says what to mend."""


class JudgeDenied(JudgeRefused):
    """The key is missing, wrong or may not do this (401, 403)."""


class JudgeOverflow(JudgeRefused):
    """Answer and next state do not fit the judge's context: this turn cannot be judged, others can."""


Ballot = Mapping[tuple[Question, int], Vote]
"""Votes by question and number; one that failed or could not be read has no value."""


class JudgeUnavailable(JudgeError):
    """Too few valid votes for a verdict: it is to be judged again later, with the votes that are there already.

    ``missing``: the questions without a quorum. ``causes``: the last fault of each vote that had one; none where the judge
    answered, but with no verdict.
    """

    def __init__(
        self, message: str, ballot: Ballot, missing: tuple[Question, ...], causes: tuple[JudgeError, ...] = ()
    ) -> None:
        waits = [error.retry_after_s for error in causes if error.retry_after_s is not None]
        super().__init__(message, max(waits, default=None))
        self.ballot, self.missing = ballot, missing
        self.denied = any(isinstance(error, JudgeDenied) for error in causes)
        """The judge did not accept the key."""
        self.passing = any(not isinstance(error, JudgeRefused) for error in causes)
        """It was out of reach or busy, which may be over at any moment."""


@dataclass(frozen=True, slots=True)
class JudgeReply:
    """One vote as it was written. ``truncated``: it hit the length limit, so what it says is not its verdict."""

    text: str
    truncated: bool = False
    prompt_tokens: int | None = None
    """As the server counted them; None where it does not say, or nothing was counted."""
    completion_tokens: int | None = None


class JudgeClient(Protocol):
    """Who answers: a scripted table, our own inference engines, or any OpenAI-compatible endpoint."""

    @property
    def model(self) -> str:
        """What the ledger calls this judge."""
        ...

    @property
    def prompt_version(self) -> str:
        """Versions of what it is asked, for the ledger."""
        ...

    async def vote(self, question: Question, answer: str, next_state: NextState, vote_index: int) -> JudgeReply:
        """One vote, to be read by ``parsing.parse_vote``.

        ``vote_index`` counts a question's votes from 0; a client may use it to make them differ.

        Raises:
            JudgeError: no answer was to be had. JudgeRefused: and none will be, if asked in the same way.
        """
        ...

    async def close(self) -> None:
        """Close the connections."""
        ...
