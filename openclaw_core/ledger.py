"""The durable store of a run: turns, judgements, steps and what the feeder said, in one SQLite file (WAL, full sync).

A turn is here before its answer is complete at the client; a step's samples and their order are here before the
optimiser step, its result before the publish (ARCHITECTURE, order of durability). The ledger is the truth about what
was trained on; the checkpoint is the truth about the weights.

All calls are short and synchronous and come from one thread, the event loop of the training service.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from openclaw_core.ledger_rows import (
    JUDGED_TURNS,
    JudgedTurn,
    LedgerError,
    Outcome,
    StepRecord,
    StepState,
    TurnStatus,
    judged_of,
    judgement_values,
    next_state_of,
    outcome_of,
    step_of,
    turn_json,
    turn_of,
)
from openclaw_core.ledger_schema import prepare
from openclaw_core.ledger_sessions import SessionFacts
from openclaw_core.types import DropReason, Judgement, NextState, Turn

__all__ = ["JudgedTurn", "Ledger", "LedgerError", "Outcome", "StepRecord", "StepState", "TurnStatus"]


class Ledger:
    """See the module's docstring. One instance per service process."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._db.row_factory = sqlite3.Row
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=FULL")
        prepare(self._db, str(path))
        self.session_facts = SessionFacts(self._db)

    def close(self) -> None:
        """Close the file; every committed row is on disk already."""
        self._db.close()

    # Turns

    def add_turn(self, turn: Turn, signature: str | None = None) -> None:
        """Store a captured turn; durable on return. ``signature``: what its session would repeat if it ran in circles.

        Of several answers to one request, which share an index, only the last one's signature is kept.
        """
        with self._transaction():
            self._db.execute(
                "INSERT INTO turns (turn_id, session_id, weight_version, body, status) VALUES (?, ?, ?, ?, ?)",
                (turn.turn_id, turn.session_id, turn.weight_version, turn_json(turn), TurnStatus.WAITING),
            )
            if signature is not None:
                self._db.execute("INSERT OR REPLACE INTO signatures VALUES (?, ?, ?)", (turn.session_id, turn.index, signature))

    def set_next_state(self, turn_id: str, state: NextState | DropReason) -> None:
        """What came after the turn, or why nothing will: then it is dropped.

        Raises LedgerError for a turn that is unknown or does not wait.
        """
        if isinstance(state, DropReason):
            self._update_turn(
                "UPDATE turns SET status = ?, drop_reason = ? WHERE turn_id = ? AND status = ?",
                (TurnStatus.DROPPED, state, turn_id, TurnStatus.WAITING),
                turn_id,
            )
            return
        self._update_turn(
            "UPDATE turns SET status = ?, next_role = ?, next_text = ? WHERE turn_id = ? AND status = ?",
            (TurnStatus.JUDGING, state.role, state.text, turn_id, TurnStatus.WAITING),
            turn_id,
        )

    def leave_out(self, turn_id: str, state: NextState, reason: DropReason) -> None:
        """The turn's next state has come, but it is kept out of training without being judged.

        Raises LedgerError for a turn that is unknown or does not wait.
        """
        self._update_turn(
            "UPDATE turns SET status = ?, drop_reason = ?, next_role = ?, next_text = ?, step = ? "
            "WHERE turn_id = ? AND status = ?",
            (TurnStatus.DROPPED, reason, state.role, state.text, self.next_step(), turn_id, TurnStatus.WAITING),
            turn_id,
        )

    def add_judgement(self, judgement: Judgement) -> None:
        """Store a verdict and make the turn ready for a batch, or mark it ``no_signal``."""
        values = judgement_values(judgement)
        with self._transaction():
            self._db.execute(
                f"INSERT INTO judgements ({', '.join(values)}) VALUES ({', '.join('?' * len(values))})", tuple(values.values())
            )
            self._update_turn(
                "UPDATE turns SET status = ? WHERE turn_id = ? AND status = ?",
                (_judged_status(judgement), judgement.turn_id, TurnStatus.JUDGING),
                judgement.turn_id,
            )

    def change_hints(self, judgement: Judgement) -> None:
        """Other hints, used and refused, for a turn that is ready but in no batch yet; it may lose its signal by that.

        Raises LedgerError for a turn that is not ready.
        """
        values = judgement_values(judgement)
        with self._transaction():
            self._update_turn(
                "UPDATE turns SET status = ? WHERE turn_id = ? AND status = ?",
                (_judged_status(judgement), judgement.turn_id, TurnStatus.READY),
                judgement.turn_id,
            )
            self._db.execute(
                "UPDATE judgements SET hints = ?, refused = ? WHERE turn_id = ?",
                (values["hints"], values["refused"], judgement.turn_id),
            )

    def drop(self, turn_id: str, reason: DropReason, step: int | None = None) -> None:
        """Keep a turn out of training, and say why."""
        self._update_turn(
            "UPDATE turns SET status = ?, drop_reason = ?, step = COALESCE(?, step) WHERE turn_id = ?",
            (TurnStatus.DROPPED, reason, step, turn_id),
            turn_id,
        )

    def to_judge(self) -> list[str]:
        """Ids of the turns whose votes are outstanding, oldest first: what a restarted service has to ask again."""
        rows = self._db.execute("SELECT turn_id FROM turns WHERE status = ? ORDER BY seq", (TurnStatus.JUDGING,))
        return [row["turn_id"] for row in rows]

    def judging(self, turn_id: str) -> tuple[Turn, NextState] | None:
        """A turn whose votes are outstanding and what came after it; None where they are not, or no longer."""
        row = self._db.execute("SELECT * FROM turns WHERE turn_id = ? AND status = ?", (turn_id, TurnStatus.JUDGING)).fetchone()
        return None if row is None or (state := next_state_of(row)) is None else (turn_of(row), state)

    def waiting(self) -> list[Turn]:
        """Turns that nobody has reacted to yet, oldest first."""
        return [
            turn_of(row) for row in self._db.execute("SELECT * FROM turns WHERE status = ? ORDER BY seq", (TurnStatus.WAITING,))
        ]

    def ready(self) -> list[JudgedTurn]:
        """Turns with a signal that are in no batch yet, in the order in which they were judged."""
        rows = self._db.execute(f"{JUDGED_TURNS} WHERE t.status = ? ORDER BY j.seq", (TurnStatus.READY,))
        return [judged_of(row) for row in rows]

    def turns(self, turn_ids: Sequence[str]) -> list[JudgedTurn]:
        """The judged turns with these ids, in this order. Raises LedgerError if one is missing."""
        found: dict[str, JudgedTurn] = {}
        for turn_id in turn_ids:
            row = self._db.execute(f"{JUDGED_TURNS} WHERE t.turn_id = ?", (turn_id,)).fetchone()
            if row is None:
                raise LedgerError(f"turn {turn_id!r} is named by a step but is not in the ledger, or was never judged")
            found[turn_id] = judged_of(row)
        return [found[turn_id] for turn_id in turn_ids]

    def count(self, status: TurnStatus) -> int:
        """Number of turns in a status."""
        return int(self._db.execute("SELECT COUNT(*) FROM turns WHERE status = ?", (status,)).fetchone()[0])

    # Steps

    def open_step(self, step: int, turn_ids: Sequence[str]) -> None:
        """Record a step's batch and its order; durable on return. Raises LedgerError if a turn is not free."""
        with self._transaction():
            self._db.execute(
                "INSERT INTO steps (step, state, turn_ids, opened_at) VALUES (?, ?, ?, ?)",
                (step, StepState.COLLECTED, json.dumps(list(turn_ids)), time.time()),
            )
            for turn_id in turn_ids:
                self._update_turn(
                    "UPDATE turns SET status = ?, step = ? WHERE turn_id = ? AND status = ?",
                    (TurnStatus.BATCHED, step, turn_id, TurnStatus.READY),
                    turn_id,
                )

    def record_training(self, step: int, version: int, skipped: bool, metrics: dict[str, Any]) -> None:
        """The optimiser step is done (or was skipped): its version and metrics, before anything is published."""
        status = TurnStatus.SKIPPED if skipped else TurnStatus.TRAINED
        with self._transaction():
            self._db.execute(
                "UPDATE steps SET state = ?, version = ?, skipped = ?, metrics = ? WHERE step = ?",
                (StepState.TRAINED, version, skipped, json.dumps(metrics), step),
            )
            self._db.execute("UPDATE turns SET status = ? WHERE step = ? AND status = ?", (status, step, TurnStatus.BATCHED))

    def advance_step(self, step: int, state: StepState, metrics: dict[str, Any] | None = None) -> None:
        """Move a step to ``published`` or ``reported``."""
        if metrics is None:
            self._db.execute("UPDATE steps SET state = ? WHERE step = ?", (state, step))
        else:
            self._db.execute("UPDATE steps SET state = ?, metrics = ? WHERE step = ?", (state, json.dumps(metrics), step))

    def step(self, step: int) -> StepRecord | None:
        """The record of a step, or None if its batch has not closed."""
        row = self._db.execute("SELECT * FROM steps WHERE step = ?", (step,)).fetchone()
        return step_of(row) if row else None

    def steps(self) -> list[StepRecord]:
        """All steps, in order."""
        return [step_of(row) for row in self._db.execute("SELECT * FROM steps ORDER BY step")]

    def consecutive_skips(self) -> int:
        """How many of the last trained steps, counted from the newest, were skipped."""
        trained = [record for record in self.steps() if record.version is not None]
        return next((i for i, record in enumerate(reversed(trained)) if not record.skipped), len(trained))

    def position(self) -> dict[str, int]:
        """How far the ledger has come: last turn and verdict by sequence number, problems that were given out."""
        turns, judgements = (
            int(self._db.execute(f"SELECT COALESCE(MAX(seq), 0) FROM {table}").fetchone()[0])
            for table in ("turns", "judgements")
        )
        return {"turns": turns, "judgements": judgements, "problems": self.problems()}

    def problems(self) -> int:
        """How many problems the feeder has given out, as far as it has told."""
        return int(self._db.execute("SELECT COALESCE(MAX(problem), 0) FROM outcomes").fetchone()[0])

    def sessions(self) -> dict[str, int]:
        """How many sessions each persona has begun, as far as the feeder has told."""
        return dict(self._db.execute("SELECT persona, COUNT(*) FROM outcomes WHERE first GROUP BY persona").fetchall())

    def next_step(self) -> int:
        """The first step that has not been reported."""
        row = self._db.execute("SELECT MAX(step) FROM steps WHERE state = ?", (StepState.REPORTED,)).fetchone()
        return int(row[0] or 0) + 1

    def drops(self, step: int) -> dict[str, int]:
        """Number of turns dropped in a step, by reason."""
        rows = self._db.execute(
            "SELECT drop_reason, COUNT(*) FROM turns WHERE status = ? AND step = ? GROUP BY drop_reason",
            (TurnStatus.DROPPED, step),
        )
        return {row[0]: int(row[1]) for row in rows}

    # Outcomes

    def add_outcome(self, outcome: Outcome, step: int) -> None:
        """Note how a persona found an answer in ``step``."""
        values = asdict(outcome) | {"step": step}
        self._db.execute(
            f"INSERT INTO outcomes ({', '.join(values)}) VALUES ({', '.join('?' * len(values))})", tuple(values.values())
        )

    def outcomes(self, step: int) -> list[Outcome]:
        """What the feeder said during a step."""
        return [outcome_of(row) for row in self._db.execute("SELECT * FROM outcomes WHERE step = ? ORDER BY seq", (step,))]

    def _update_turn(self, sql: str, parameters: Iterable[Any], turn_id: str) -> None:
        if self._db.execute(sql, tuple(parameters)).rowcount != 1:
            row = self._db.execute("SELECT status FROM turns WHERE turn_id = ?", (turn_id,)).fetchone()
            found = f"its status is {row['status']!r}" if row else "there is no such turn"
            raise LedgerError(f"turn {turn_id!r} cannot be changed this way: {found}")

    def _transaction(self) -> _Transaction:
        return _Transaction(self._db)


class _Transaction:
    """BEGIN IMMEDIATE … COMMIT, or ROLLBACK on an error."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db

    def __enter__(self) -> None:
        self._db.execute("BEGIN IMMEDIATE")

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self._db.execute("COMMIT" if kind is None else "ROLLBACK")


def _judged_status(judgement: Judgement) -> TurnStatus:
    return TurnStatus.READY if judgement.has_signal else TurnStatus.NO_SIGNAL
