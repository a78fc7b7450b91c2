"""Sessions for tests: a book with a sink that remembers and a clock that stands still, and turns made on the fly."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from openclaw_core.gateway.sessions import Exchange, SessionBook
from openclaw_core.types import FinishReason, Sampling, Turn
from tests.gateway_parts import RecordingSink


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Book:
    """A SessionBook, its sink and its clock. ``session``: the id that the client sends, None where it sends none."""

    def __init__(self, **options: Any) -> None:
        self.sink, self.clock = RecordingSink(), Clock()
        self.sessions = SessionBook(self.sink, idle_s=100.0, clock=self.clock, **options)

    @contextmanager
    def request(self, messages: list[Any], session: str | None = "s", user: str | None = None) -> Iterator[Exchange]:
        origin = self.sessions.find(messages, header=session, user=user)
        with self.sessions.request(origin) as exchange:
            yield exchange

    def capture(self, exchange: Exchange, messages: list[Any], answer: str, *, last: bool = False, **turn: Any) -> str:
        captured = make_turn(f"t{len(self.sink.turns)}", exchange.session_id, exchange.index, messages, answer, **turn)
        self.sessions.capture(exchange, captured, last=last)
        return captured.turn_id

    def answer(
        self,
        messages: list[Any],
        answer: str,
        session: str | None = "s",
        *,
        last: bool = False,
        user: str | None = None,
        **turn: Any,
    ) -> str:
        """A request from its arrival to its captured answer; returns the turn's id."""
        with self.request(messages, session, user) as exchange:
            return self.capture(exchange, messages, answer, last=last, user=user, **turn)

    def session_of(self, turn_id: str) -> str:
        return next(turn.session_id for turn in self.sink.turns if turn.turn_id == turn_id)


def make_turn(turn_id: str, session: str, index: int, messages: list[Any], answer: str, **changes: Any) -> Turn:
    values: dict[str, Any] = {
        "turn_id": turn_id,
        "session_id": session,
        "index": index,
        "messages": tuple(messages),
        "answer": answer,
        "prompt_ids": (1,),
        "response_ids": (2,),
        "rollout_logprobs": (-0.5,),
        "sampling": Sampling(1.0, 8),
        "weight_version": 0,
        "version_spans": ((0, 1),),
        "finish_reason": FinishReason.STOP,
        "hint_offset": None,
        "created_at": 0.0,
        "generate_s": 0.0,
    }
    return Turn(**values | changes)


def tool(text: str) -> dict[str, Any]:
    return {"role": "tool", "content": text, "tool_call_id": "c"}


def call(name: str, arguments: str) -> dict[str, Any]:
    return {"id": "call-1", "type": "function", "function": {"name": name, "arguments": arguments}}
