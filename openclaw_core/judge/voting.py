"""Votes → verdict: plurality with a quorum for the reward, acceptance and order of the hints (ALGORITHM 1)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from openclaw_core.types import Question, Vote


class NotEnoughVotes(ValueError):
    """A question got fewer valid votes than its quorum."""


def quorum(votes: int) -> int:
    """Valid votes that one question needs out of M = ``votes``: ceil(M / 2)."""
    return math.ceil(votes / 2)


def require_quorum(votes: Sequence[Vote], question: Question, asked: int) -> None:
    """Raises NotEnoughVotes where fewer than ``quorum(asked)`` of ``question``'s votes have a value."""
    valid = sum(vote.question is question and vote.value is not None for vote in votes)
    if valid < quorum(asked):
        raise NotEnoughVotes(
            f"{question} question: {valid} valid of {asked} votes, {quorum(asked)} are needed; judge the turn again"
        )


def majority(votes: Sequence[Vote]) -> int:
    """Plurality over {+1, 0, -1} of the valid votes on the reward question; a tie at the top is 0."""
    counts = Counter(vote.value for vote in votes if vote.question is Question.REWARD and vote.value is not None)
    (first, most), *rest = counts.most_common() or [(0, 0)]
    return 0 if any(count == most for _, count in rest) else first


def accepted_hints(votes: Sequence[Vote], min_chars: int, max_candidates: int) -> tuple[str, ...]:
    """Hints of the +1 votes, at least ``min_chars`` long, without repetitions, shortest first, C <= ``max_candidates``.

    Two hints are the same where they differ in case and white space only. The result does not depend on the order of
    the votes: hints of equal length are in alphabetical order.
    """
    texts = [
        vote.hint.strip() for vote in votes if vote.question is Question.HINT and vote.value == 1 and vote.hint is not None
    ]
    kept: dict[str, str] = {}
    for text in sorted(texts, key=lambda text: (len(text), text)):
        if len(text) >= min_chars:
            kept.setdefault(" ".join(text.casefold().split()), text)
    return tuple(kept.values())[:max_candidates]
