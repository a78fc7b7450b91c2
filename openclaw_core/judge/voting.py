"""Votes → verdict: plurality with a quorum for the reward, acceptance and order of the hints (ALGORITHM 1)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence

from openclaw_core.types import HintRefusal, Question, Vote


def quorum(votes: int) -> int:
    """Valid votes that one question needs out of M = ``votes``: ceil(M / 2)."""
    return math.ceil(votes / 2)


def majority(votes: Sequence[Vote]) -> int:
    """Plurality over {+1, 0, -1} of the valid votes on the reward question; a tie at the top is 0."""
    counts = Counter(vote.value for vote in votes if vote.question is Question.REWARD and vote.value is not None)
    (first, most), *rest = counts.most_common() or [(0, 0)]
    return 0 if any(count == most for _, count in rest) else first


def has_quorum(votes: Sequence[Vote], question: Question, asked: int) -> bool:
    """Whether at least ``quorum(asked)`` of ``question``'s votes have a value."""
    return sum(vote.question is question and vote.value is not None for vote in votes) >= quorum(asked)


def agreement(votes: Sequence[Vote]) -> tuple[int, int]:
    """(valid votes that say what most say on their question, valid votes), over both questions."""
    by_question = [Counter(v.value for v in votes if v.question is q and v.value is not None) for q in Question]
    return sum(max(values.values(), default=0) for values in by_question), sum(values.total() for values in by_question)


Refuse = Callable[[str], HintRefusal | None]
"""Why a hint may not be used; None where it may."""


def choose_hints(
    votes: Sequence[Vote], min_chars: int, max_candidates: int, refuse: Refuse = lambda hint: None
) -> tuple[tuple[str, ...], tuple[tuple[str, str], ...]]:
    """The hints of the +1 votes: (those that are used, those that are refused with their reason).

    Two hints are the same where they differ in case and white space only; both lists are without repetitions and shortest
    first. Used are those that are at least ``min_chars`` long and that ``refuse`` lets pass, C <= ``max_candidates``. The
    result does not depend on the order of the votes: hints of equal length are in alphabetical order.
    """
    texts = [
        vote.hint.strip() for vote in votes if vote.question is Question.HINT and vote.value == 1 and vote.hint is not None
    ]
    distinct: dict[str, str] = {}
    for text in sorted(texts, key=lambda text: (len(text), text)):
        distinct.setdefault(" ".join(text.casefold().split()), text)
    used: list[str] = []
    refused: list[tuple[str, str]] = []
    for text in distinct.values():
        reason = HintRefusal.TOO_SHORT if len(text) < min_chars else refuse(text)
        if reason is None:
            used.append(text)
        else:
            refused.append((text, reason.value))
    return tuple(used[:max_candidates]), tuple(refused)
