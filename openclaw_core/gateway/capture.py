"""What is captured of a conversation: the turn, and what a later history says about it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Protocol

from openclaw_core.gateway.history import Digest, History, answer_message, extend
from openclaw_core.types import DropReason, Message, NextState, Turn


class TurnSink(Protocol):
    """Where captured turns go: the ledger, by way of the loop. Both calls are durable on return."""

    def turn(self, turn: Turn) -> None:
        """A main turn was answered. Called before the answer's last byte leaves."""
        ...

    def next_state(self, turn_id: str, state: NextState | DropReason) -> None:
        """What came after that turn, or why nothing will. Called once for each turn."""
        ...


@dataclass(frozen=True, slots=True)
class Captured:
    """What is kept in memory of a captured turn: enough to recognise its answer in a history. The ledger has the rest."""

    turn_id: str
    index: int
    asked: Digest
    """Hash of the history that was asked."""
    answered: Digest
    """Hash of that history with the answer."""
    length: int
    """Number of messages of that history, the answer included."""

    @staticmethod
    def of(turn: Turn, history: History) -> Captured:
        """``history`` is that of ``turn.messages``."""
        answered = extend(history.whole, answer_message(turn.answer, turn.tool_calls))
        return Captured(turn.turn_id, turn.index, history.whole, answered, len(history) + 1)


def verdict(captured: Captured, history: History) -> NextState | DropReason | None:
    """What a later history says about a turn.

    A next state, where the history holds the turn's answer and something was said after it; None where it holds the answer
    and nothing was said yet; ``regenerated`` where the same thing is asked again; else ``history_diverged``.
    """
    if history.holds(captured.answered, captured.length):
        return reaction(history.conversation[captured.length :])
    return DropReason.REGENERATED if history.whole == captured.asked else DropReason.HISTORY_DIVERGED


def reaction(after: Sequence[Message]) -> NextState | None:
    """What the messages right after an answer say: the user's words, else tool results. None: nothing.

    A user who sent white space has said nothing; a tool may well have an empty result.
    """
    followed = list(takewhile(lambda message: message["role"] != "assistant", after))
    said = [message["content"] for message in followed if message["role"] == "user" and message["content"].strip()]
    if said:
        return NextState("user", "\n\n".join(said))
    results = [message.get("content") or "" for message in followed if message["role"] == "tool"]
    return NextState("tool", "\n\n".join(results)) if results else None
