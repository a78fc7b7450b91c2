r"""A judge's raw text → a vote.

The contract with every judge: the last ``\boxed{...}`` is its verdict, and a hint stands between ``[HINT_START]``
and ``[HINT_END]``. Whatever does not keep to it is no vote (``value`` None), never a neutral one.
"""

from __future__ import annotations

import re

from openclaw_core.types import Question, Vote

HINT_START = "[HINT_START]"
HINT_END = "[HINT_END]"

_THINK, _THINK_END = "<think>", "</think>"
_BOXED = re.compile(r"\\boxed\{([^{}]*)\}")
_ALLOWED = {
    Question.REWARD: {"1": 1, "+1": 1, "-1": -1, "0": 0},
    Question.HINT: {"1": 1, "+1": 1, "-1": -1},
}


def parse_vote(question: Question, raw: str) -> Vote:
    """Read one judge's answer. A hint is kept only where the hint question was answered with +1.

    What stands before the last ``</think>``, or after a ``<think>`` that is never closed, was thought and not said. Servers
    that tell reasoning from answer by themselves leave neither.
    """
    said = raw.rpartition(_THINK_END)[2].partition(_THINK)[0]
    boxed = _BOXED.findall(said)
    value = _ALLOWED[question].get(boxed[-1].strip()) if boxed else None
    hint = _last_hint(said) if question is Question.HINT and value == 1 else None
    return Vote(question=question, value=value, hint=hint, raw=raw)


def _last_hint(raw: str) -> str | None:
    """Text of the last whole hint block: a judge that thinks aloud may name the markers before it uses them."""
    end = raw.rfind(HINT_END)
    start = raw.rfind(HINT_START, 0, max(end, 0))
    if start < 0:
        return None
    return raw[start + len(HINT_START) : end].strip() or None
