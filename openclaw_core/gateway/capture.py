"""What is captured of a conversation: the turn, and the reaction to it that the next request brings."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from typing import Protocol

from openclaw_core.types import Message, NextState, Turn


class TurnSink(Protocol):
    """Where captured turns go: the ledger, by way of the loop. Both calls are durable on return."""

    def turn(self, turn: Turn) -> None:
        """A main turn was answered. Called before the answer's last byte leaves."""
        ...

    def next_state(self, turn_id: str, state: NextState | None) -> None:
        """What came after that turn; None: nothing will. Called once for each turn."""
        ...


def same_request(one: Sequence[Message], other: Sequence[Message]) -> bool:
    """Whether a client asks the same thing again."""
    return _lines(one) == _lines(other)


def reaction(asked: Sequence[Message], answer: str, history: Sequence[Message]) -> NextState | None:
    """What ``history`` says right after ``answer``, which was given to ``asked``: the user's words, else tool results.

    None where the history does not hold that exchange (edited, regenerated or compacted) or where nothing follows it.
    System turns do not count: clients put the time of day and the like there.
    """
    before = _lines(asked, system=False)
    exchange = [*before, ("assistant", answer.strip())]
    conversation = [message for message in history if message["role"] != "system"]
    if _lines(conversation[: len(exchange)]) != exchange:
        return None
    followed = list(takewhile(lambda message: message["role"] != "assistant", conversation[len(exchange) :]))
    for role in ("user", "tool"):
        if texts := [message["content"] for message in followed if message["role"] == role]:
            return NextState(role, "\n\n".join(texts))
    return None


def _lines(messages: Sequence[Message], *, system: bool = True) -> list[tuple[str, str]]:
    """Role and text of each message; white space at the edges is the client's, not the speaker's."""
    return [(message["role"], message["content"].strip()) for message in messages if system or message["role"] != "system"]
