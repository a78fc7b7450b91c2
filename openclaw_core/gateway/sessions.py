"""Sessions: whose request it is, which answer waits for a reaction, and when a conversation is over.

A session has its id from the client (X-Session-Id, ``metadata.session_id``) or, where requests carry none, is inferred: a
request whose history holds a session's answer goes on with that session. Two clients may well open with the same words, so a
request that holds no answer of ours always opens a session of its own; if it was the repeat of an earlier one, that one's turn
is never continued and in the end gets the reason ``regenerated``.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import structlog

from openclaw_core.gateway.capture import Captured, TurnSink, verdict
from openclaw_core.gateway.counts import Counts, Found
from openclaw_core.gateway.history import Digest, History, HistoryIndex
from openclaw_core.types import DropReason, Message, NextState, Turn

log = structlog.get_logger()

INFERRED = "inferred-"
"""Ids of sessions that no client named begin so; that is how they are known after a restart."""

_SWEEP_AT_ONCE = 8
"""Sessions ended before the event loop gets its turn: each is a durable write."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Whose request it is. A main request has a session and a history; a side turn may name a session, to end it."""

    found: Found
    session_id: str | None = None
    user: str | None = None
    history: History | None = None


@dataclass(slots=True, eq=False)
class Session:
    """One conversation. ``last`` is its last captured turn; ``waits``: nothing has come after that yet."""

    session_id: str
    inferred: bool
    user: str | None
    last_seen: float
    next_index: int = 0
    last: Captured | None = None
    waits: bool = False
    base: Digest | None = None
    """Hash of the history up to the answer before ``last``: where an edit or a repeat of the last request branches off."""
    in_flight: int = 0
    closed: bool = False
    left: DropReason | None = None
    """A better reason than the session's end, should ``last`` still wait then."""


@dataclass(slots=True)
class Exchange:
    """A main request in flight. ``seen``: the turn that waited when it came."""

    session: Session
    history: History
    seen: Captured | None

    @property
    def session_id(self) -> str:
        """The session that the answer belongs to."""
        return self.session.session_id

    @property
    def index(self) -> int:
        """The answer's number in its session; another answer to the same request has the same. Read it at capture."""
        last = self.session.last
        if last is not None and self.session.waits and last.asked == self.history.whole:
            return last.index
        return self.session.next_index


class SessionBook:
    """All open sessions. Every captured turn gets its next state, or the reason why there is none, exactly once.

    Memory is bounded: past ``max_sessions`` the one that has been idle longest is ended, whatever waits there.
    """

    def __init__(
        self,
        sink: TurnSink,
        idle_s: float,
        *,
        inference: bool = True,
        max_sessions: int = 100_000,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._sink = sink
        self._idle_s = idle_s
        self._max = max_sessions
        self._clock = clock
        self._busy: dict[str, Session] = {}
        self._idle: OrderedDict[str, Session] = OrderedDict()  # longest idle first
        self._index: HistoryIndex[Session] = HistoryIndex()
        self.counts = Counts(inference)

    def __len__(self) -> int:
        return len(self._busy) + len(self._idle)

    def find(
        self,
        messages: Sequence[Message],
        *,
        header: str | None = None,
        metadata: str | None = None,
        user: str | None = None,
        side: bool = False,
    ) -> Origin:
        """Whose request it is, and count it. Nothing is opened before ``request``, which has to follow without an await.

        ``header`` and ``metadata`` are the session ids that came by either way; ``side``: it is to be a side turn.
        """
        origin = self._find(messages, header or None, metadata or None, user, side)
        self.counts.requests[origin.found] += 1
        return origin

    @contextmanager
    def request(self, origin: Origin) -> Iterator[Exchange]:
        """A main request is in flight. What it says about the turn that waits in its session is delivered on entry.

        Whatever replaces that turn does so only when it is captured: a request that fails, or whose client goes away, has
        done no harm.
        """
        assert origin.history is not None
        session = self._enter(origin)
        try:
            exchange = Exchange(session, origin.history, session.last if session.waits else None)
            if exchange.seen is not None and isinstance(state := verdict(exchange.seen, exchange.history), NextState):
                self._settle(session, state)
            yield exchange
        finally:
            self._leave(session)

    def capture(self, exchange: Exchange, turn: Turn, *, last: bool) -> None:
        """Store an answered turn. ``last``: the client said that nothing will come after it."""
        session, captured = exchange.session, Captured.of(turn, exchange.history)
        self._sink.turn(turn)
        self._replace(session, captured, exchange.history, exchange.seen)
        if last or session.closed:
            self._end(session, DropReason.SESSION_CLOSED)

    def close(self, session_id: str, message: Message | None = None) -> str | None:
        """End a session; ``message`` is the user's last word. Returns the id of the turn that it was about, if any."""
        session = self._get(session_id)
        if session is None:
            return None
        turn_id = session.last.turn_id if session.last is not None and session.waits else None
        said = message is not None and message["content"].strip()
        self._end(session, NextState("user", message["content"]) if message and said else DropReason.SESSION_CLOSED)
        return turn_id

    def restore(self, turns: Iterable[Turn]) -> None:
        """Take up the sessions of turns that were captured before a restart and have no next state yet, oldest first."""
        for turn in turns:
            history = History(turn.messages)
            session = self._enter(Origin(Found.HISTORY, turn.session_id, turn.user))
            if turn.index and session.base is None:
                session.base = next(history.answered(), None)
            self._replace(session, Captured.of(turn, history), history, session.last)
            self._leave(session)

    def sweep(self, at_most: int | None = None) -> int:
        """End the sessions that have been idle for too long, the longest idle first; returns how many."""
        limit, ended = self._clock() - self._idle_s, 0
        while self._idle and ended != at_most:
            session = next(iter(self._idle.values()))
            if session.last_seen > limit:
                break
            log.info("session_idle", session=session.session_id, turns=session.next_index)
            self._end(session, DropReason.SESSION_IDLE)
            ended += 1
        return ended

    async def sweep_forever(self) -> None:
        """Sweep, four times in the idle time but at least every half minute, until cancelled."""
        while True:
            await asyncio.sleep(min(30.0, self._idle_s / 4))
            try:
                while self.sweep(_SWEEP_AT_ONCE):
                    await asyncio.sleep(0)
            except Exception:  # a full disk, say: the sessions are still there, and the next sweep tries again
                log.exception("sweep_failed", sessions=len(self))

    # Which session

    def _find(
        self, messages: Sequence[Message], header: str | None, metadata: str | None, user: str | None, side: bool
    ) -> Origin:
        session_id = header or metadata
        if side:
            return Origin(Found.SIDE, session_id, user)
        if session_id is None and not self.counts.inference:
            return Origin(Found.NONE, None, user)
        history = History(messages)
        if session_id is not None:
            return Origin(Found.HEADER if header else Found.METADATA, session_id, user, history)
        session = self._of(history, user)
        if session is None:
            return Origin(Found.OPENED, f"{INFERRED}{uuid.uuid4().hex}", user, history)
        return Origin(Found.HISTORY, session.session_id, user, history)

    def _of(self, history: History, user: str | None) -> Session | None:
        """The inferred session that a history goes on with.

        The longest history wins. At its end, of sessions with one history: one whose answer still waits, else the one that
        was asked this very thing, else one that has gone on from there already (an edit, or a request that failed).
        """
        asked = self._index.known(history.whole, user)
        if asked is not None and asked.base is None:
            asked = None
        for digest in history.answered():
            if found := self._index.waiting(digest, user) or asked or self._index.known(digest, user):
                return found
        return asked

    def _get(self, session_id: str) -> Session | None:
        return self._busy.get(session_id) or self._idle.get(session_id)

    def _enter(self, origin: Origin) -> Session:
        session_id = origin.session_id
        assert session_id is not None
        session = self._busy.get(session_id) or self._idle.pop(session_id, None)
        named = origin.found in (Found.HEADER, Found.METADATA)
        if session is None:
            while len(self) >= self._max and self._idle:
                self._evict()
            inferred = not named and session_id.startswith(INFERRED)
            session = Session(session_id, inferred, origin.user if inferred else None, self._clock())
        elif named and session.inferred:
            self._forget(session)  # from now on the client names it
            session.inferred = False
        self._busy[session_id] = session
        session.in_flight += 1
        return session

    def _leave(self, session: Session) -> None:
        session.in_flight -= 1
        if session.in_flight or session.closed:
            return
        del self._busy[session.session_id]
        if session.last is not None:  # else nothing was captured, and there is nothing to remember
            session.last_seen = self._clock()
            self._idle[session.session_id] = session

    def _evict(self) -> None:
        session = next(iter(self._idle.values()))
        log.info("session_evicted", session=session.session_id, sessions=len(self), max_sessions=self._max)
        self._end(session, DropReason.SESSION_EVICTED)

    # What becomes of a turn

    def _replace(self, session: Session, captured: Captured, history: History, seen: Captured | None) -> None:
        """``captured`` is the session's turn from now on; one that still waits there will not be continued."""
        before = session.last
        if before is not None and session.waits:
            said = verdict(before, history)
            # A turn that came while this request was in flight cannot be in its history: it was overtaken, not edited.
            overtaken = said is DropReason.HISTORY_DIVERGED and before is not seen
            self._settle(session, DropReason.SUPERSEDED if overtaken or said is None else said)
        self._forget(session)
        if before is not None and history.holds(before.answered, before.length):
            session.base = before.answered
        session.last, session.waits, session.left = captured, True, None
        session.next_index = captured.index + 1
        self._remember(session)

    def _settle(self, session: Session, state: NextState | DropReason) -> None:
        """Tell the sink what came after the turn that waits. If the sink fails, the turn still waits."""
        last = session.last
        assert last is not None
        self._sink.next_state(last.turn_id, state)
        session.waits = False
        if session.inferred:
            self._index.leave(last.answered, session.user, session)
            self._index.know(last.answered, session.user, session)
        if isinstance(state, NextState):
            self.counts.next_states += 1
        else:
            self.counts.drops[state] += 1
            log.info("turn_dropped", turn=last.turn_id, session=session.session_id, reason=state.value)

    def _end(self, session: Session, state: NextState | DropReason) -> None:
        if session.waits:
            self._settle(session, state if isinstance(state, NextState) else session.left or state)
        self._forget(session)
        session.closed = True
        for sessions in (self._busy, self._idle):
            if sessions.get(session.session_id) is session:
                del sessions[session.session_id]

    # The index of inferred sessions

    def _remember(self, session: Session) -> None:
        """The session's new turn waits. Another session's turn that answered the same may have been left for it."""
        last, user = session.last, session.user
        if not session.inferred or last is None:
            return
        other = self._index.known(last.asked, user)
        if other is not None and other.waits and other.last is not None and other.last.asked == last.asked:
            other.left = DropReason.REGENERATED
        self._index.know(last.asked, user, session)
        if session.base is not None:
            self._index.know(session.base, user, session)
        self._index.wait(last.answered, user, session)

    def _forget(self, session: Session) -> None:
        last, user = session.last, session.user
        if not session.inferred or last is None:
            return
        self._index.forget(last.asked, user, session)
        if session.base is not None:
            self._index.forget(session.base, user, session)
        if session.waits:
            self._index.leave(last.answered, user, session)
        else:
            self._index.forget(last.answered, user, session)
