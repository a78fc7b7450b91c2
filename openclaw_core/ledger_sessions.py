"""What the ledger knows of a session as a whole: whether it runs in circles, and its problem's known answer."""

from __future__ import annotations

import sqlite3
import time

from openclaw_core.ledger_rows import JUDGED_TURNS, JudgedTurn, TurnStatus, judged_of
from openclaw_core.types import DropReason


class SessionFacts:
    """Over the connection of a Ledger; nothing is kept in memory, so a restart forgets nothing."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db

    def signatures(self, session_id: str, limit: int) -> list[str]:
        """Signatures of the session's last ``limit`` answers, the newest first."""
        rows = self._db.execute(
            "SELECT signature FROM signatures WHERE session_id = ? ORDER BY turn_index DESC LIMIT ?", (session_id, limit)
        )
        return [row["signature"] for row in rows]

    def loops(self, session_id: str) -> bool:
        """Whether the session was marked as one that runs in circles."""
        row = self._db.execute("SELECT 1 FROM looping_sessions WHERE session_id = ?", (session_id,)).fetchone()
        return row is not None

    def turn_loops(self, turn_id: str) -> bool:
        """Whether a turn's session was marked so."""
        row = self._db.execute(
            "SELECT 1 FROM looping_sessions JOIN turns USING (session_id) WHERE turns.turn_id = ?", (turn_id,)
        ).fetchone()
        return row is not None

    def mark_loop(self, session_id: str, turn_id: str, step: int) -> list[str]:
        """Mark a session at its turn ``turn_id`` and drop those of its turns that are on their way to a batch.

        Returns their ids. A turn that nobody has reacted to yet goes on waiting: it is dropped when somebody does.
        """
        self._db.execute("BEGIN IMMEDIATE")
        try:
            self._db.execute("INSERT OR IGNORE INTO looping_sessions VALUES (?, ?, ?)", (session_id, turn_id, time.time()))
            rows = self._db.execute(
                "UPDATE turns SET status = ?, drop_reason = ?, step = ? WHERE session_id = ? AND status IN (?, ?) "
                "RETURNING turn_id",
                (TurnStatus.DROPPED, DropReason.LOOP, step, session_id, TurnStatus.JUDGING, TurnStatus.READY),
            ).fetchall()
        except BaseException:
            self._db.execute("ROLLBACK")
            raise
        self._db.execute("COMMIT")
        return [row["turn_id"] for row in rows]

    def persona(self, session_id: str) -> str:
        """Who talks in a session, as the feeder named them; "" where nobody has."""
        row = self._db.execute("SELECT persona FROM outcomes WHERE session_id = ? LIMIT 1", (session_id,)).fetchone()
        return "" if row is None else row["persona"]

    def known_answer(self, session_id: str) -> str | None:
        """The known answer of the session's problem, as the feeder told it last; None where it told none."""
        row = self._db.execute(
            "SELECT ground_truth FROM outcomes WHERE session_id = ? AND ground_truth IS NOT NULL ORDER BY seq DESC LIMIT 1",
            (session_id,),
        ).fetchone()
        return None if row is None else row["ground_truth"]

    def ready(self, session_id: str) -> list[JudgedTurn]:
        """The session's turns that have a signal and are in no batch yet."""
        rows = self._db.execute(
            f"{JUDGED_TURNS} WHERE t.session_id = ? AND t.status = ? ORDER BY j.seq", (session_id, TurnStatus.READY)
        )
        return [judged_of(row) for row in rows]
