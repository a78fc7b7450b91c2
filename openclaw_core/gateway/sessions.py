"""Sessions: which answer waits for a reaction, and when a conversation is over."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import structlog

from openclaw_core.gateway.capture import TurnSink, reaction, same_request
from openclaw_core.types import Message, NextState, Turn

log = structlog.get_logger()


@dataclass(slots=True)
class Session:
    """One conversation. ``pending`` is its last captured turn, as long as nothing has come after it."""

    session_id: str
    last_seen: float
    next_index: int = 0
    pending: Turn | None = None
    in_flight: int = 0
    closed: bool = False


class SessionBook:
    """All open sessions. Every captured turn gets its next state exactly once: by the next request, or None at the end."""

    def __init__(self, sink: TurnSink, idle_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._sink = sink
        self._idle_s = idle_s
        self._clock = clock
        self._sessions: dict[str, Session] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    @contextmanager
    def request(self, session_id: str, messages: Sequence[Message]) -> Iterator[Session]:
        """A main request is in flight. What it says about the session's pending turn is delivered on entry."""
        session = self._sessions.setdefault(session_id, Session(session_id, self._clock()))
        session.in_flight += 1
        try:
            self._deliver(session, messages)
            yield session
        finally:
            session.in_flight -= 1
            session.last_seen = self._clock()

    def capture(self, session: Session, turn: Turn, *, last: bool) -> None:
        """Store an answered turn. ``last``: the client said that nothing will come after it."""
        self._settle(session, None)
        self._sink.turn(turn)
        session.pending = turn
        session.next_index = turn.index + 1
        if last or session.closed:
            self._end(session, None)

    def close(self, session_id: str, message: Message | None) -> str | None:
        """End a session; ``message`` is the user's last word. Returns the id of the turn that it was about, if any."""
        session = self._sessions.get(session_id)
        if session is None:
            return None
        turn = session.pending
        self._end(session, None if message is None else NextState("user", message["content"]))
        return None if turn is None else turn.turn_id

    def restore(self, turns: Iterable[Turn]) -> None:
        """Take up the sessions of turns that were captured before a restart and have no next state yet, oldest first."""
        for turn in turns:
            session = self._sessions.setdefault(turn.session_id, Session(turn.session_id, self._clock()))
            self._settle(session, None)
            session.pending = turn
            session.next_index = turn.index + 1

    def sweep(self) -> int:
        """End the sessions that have been idle for too long; returns how many."""
        limit = self._clock() - self._idle_s
        idle = [session for session in self._sessions.values() if not session.in_flight and session.last_seen <= limit]
        for session in idle:
            log.info("session_idle", session=session.session_id, turns=session.next_index)
            self._end(session, None)
        return len(idle)

    async def sweep_forever(self) -> None:
        """Sweep, four times in the idle time but at least every half minute, until cancelled."""
        while True:
            await asyncio.sleep(min(30.0, self._idle_s / 4))
            self.sweep()

    def _deliver(self, session: Session, messages: Sequence[Message]) -> None:
        turn = session.pending
        if turn is None:
            return
        if same_request(turn.messages, messages):
            log.info("turn_regenerated", session=session.session_id, turn=turn.turn_id)
            session.next_index = turn.index
            self._settle(session, None)
            return
        state = reaction(turn.messages, turn.answer, messages)
        if state is None:
            log.info("history_diverged", session=session.session_id, turn=turn.turn_id)
        self._settle(session, state)

    def _settle(self, session: Session, state: NextState | None) -> None:
        if session.pending is not None:
            turn_id, session.pending = session.pending.turn_id, None
            self._sink.next_state(turn_id, state)

    def _end(self, session: Session, state: NextState | None) -> None:
        session.closed = True
        if self._sessions.get(session.session_id) is session:
            del self._sessions[session.session_id]
        self._settle(session, state)
