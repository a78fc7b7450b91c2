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
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from pathlib import Path
from typing import Any

from openclaw_core.errors import OpenClawError
from openclaw_core.types import DropReason, FinishReason, Judgement, NextState, Question, Sampling, Turn, Vote

SCHEMA = """
CREATE TABLE IF NOT EXISTS turns (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    turn_id TEXT NOT NULL UNIQUE,
    session_id TEXT NOT NULL,
    weight_version INTEGER NOT NULL,
    body TEXT NOT NULL,
    status TEXT NOT NULL,
    next_role TEXT,
    next_text TEXT,
    drop_reason TEXT,
    step INTEGER
);
CREATE INDEX IF NOT EXISTS turns_by_status ON turns (status);
CREATE INDEX IF NOT EXISTS turns_by_step ON turns (step);
CREATE TABLE IF NOT EXISTS judgements (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    turn_id TEXT NOT NULL UNIQUE REFERENCES turns (turn_id),
    reward INTEGER NOT NULL,
    hints TEXT NOT NULL,
    votes TEXT NOT NULL,
    judged_at REAL NOT NULL
);
CREATE TABLE IF NOT EXISTS steps (
    step INTEGER PRIMARY KEY,
    state TEXT NOT NULL,
    turn_ids TEXT NOT NULL,
    version INTEGER,
    skipped INTEGER NOT NULL DEFAULT 0,
    metrics TEXT NOT NULL DEFAULT '{}',
    opened_at REAL NOT NULL
);
CREATE TABLE IF NOT EXISTS outcomes (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    session_id TEXT NOT NULL,
    step INTEGER NOT NULL,
    persona TEXT NOT NULL,
    first INTEGER NOT NULL,
    satisfied INTEGER NOT NULL,
    relevant INTEGER NOT NULL,
    problem INTEGER NOT NULL
);
CREATE INDEX IF NOT EXISTS outcomes_by_step ON outcomes (step);
"""

_JUDGED = "SELECT t.*, j.reward, j.hints, j.votes FROM turns t JOIN judgements j USING (turn_id)"


class LedgerError(OpenClawError):
    """The ledger was asked for something that contradicts what it holds."""


class TurnStatus(StrEnum):
    """Where a turn stands."""

    WAITING = "waiting"
    """Captured; nobody has reacted to it yet."""
    JUDGING = "judging"
    """The next state is known; the judge's votes are not."""
    READY = "ready"
    """Judged, with a signal; free for a batch."""
    NO_SIGNAL = "no_signal"
    """Judged neither good nor bad, and without a hint."""
    BATCHED = "batched"
    """In the batch of a step that is not trained yet."""
    TRAINED = "trained"
    SKIPPED = "skipped"
    """In a step whose update was skipped; not used again."""
    DROPPED = "dropped"
    """Not trained on, with a reason."""


class StepState(StrEnum):
    """How far a step has come; each state includes those before it."""

    COLLECTED = "collected"
    TRAINED = "trained"
    """Or skipped: ``StepRecord.skipped``."""
    PUBLISHED = "published"
    REPORTED = "reported"


@dataclass(frozen=True, slots=True)
class JudgedTurn:
    """A turn with its verdict."""

    turn: Turn
    judgement: Judgement


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One step as it is on disk. ``version`` is that of the weights after it; None until trained."""

    step: int
    state: StepState
    turn_ids: tuple[str, ...]
    version: int | None
    skipped: bool
    """By the guard against non-finite gradients: the version is that of the step before."""
    metrics: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a persona found an answer, as the feeder tells it. ``problem``: the problem's number in the feeder's stream."""

    session_id: str
    persona: str
    first: bool
    satisfied: bool
    relevant: bool
    problem: int


class Ledger:
    """See the module's docstring. One instance per service process."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._db.row_factory = sqlite3.Row
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=FULL")
        self._db.executescript(SCHEMA)

    def close(self) -> None:
        """Close the file; every committed row is on disk already."""
        self._db.close()

    # Turns

    def add_turn(self, turn: Turn) -> None:
        """Store a captured turn; durable on return."""
        self._db.execute(
            "INSERT INTO turns (turn_id, session_id, weight_version, body, status) VALUES (?, ?, ?, ?, ?)",
            (turn.turn_id, turn.session_id, turn.weight_version, _turn_json(turn), TurnStatus.WAITING),
        )

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

    def add_judgement(self, judgement: Judgement) -> None:
        """Store a verdict and make the turn ready for a batch, or mark it ``no_signal``."""
        status = TurnStatus.READY if judgement.has_signal else TurnStatus.NO_SIGNAL
        with self._transaction():
            self._db.execute(
                "INSERT INTO judgements (turn_id, reward, hints, votes, judged_at) VALUES (?, ?, ?, ?, ?)",
                (
                    judgement.turn_id,
                    judgement.reward,
                    json.dumps(judgement.hints),
                    json.dumps([asdict(vote) for vote in judgement.votes]),
                    time.time(),
                ),
            )
            self._update_turn(
                "UPDATE turns SET status = ? WHERE turn_id = ? AND status = ?",
                (status, judgement.turn_id, TurnStatus.JUDGING),
                judgement.turn_id,
            )

    def drop(self, turn_id: str, reason: DropReason, step: int | None = None) -> None:
        """Keep a turn out of training, and say why."""
        self._update_turn(
            "UPDATE turns SET status = ?, drop_reason = ?, step = COALESCE(?, step) WHERE turn_id = ?",
            (TurnStatus.DROPPED, reason, step, turn_id),
            turn_id,
        )

    def to_judge(self) -> list[tuple[Turn, NextState]]:
        """Turns whose votes are outstanding, oldest first: what a restarted service has to ask again."""
        rows = self._db.execute("SELECT * FROM turns WHERE status = ? ORDER BY seq", (TurnStatus.JUDGING,))
        return [(_turn(row), NextState(row["next_role"], row["next_text"])) for row in rows]

    def waiting(self) -> list[Turn]:
        """Turns that nobody has reacted to yet, oldest first."""
        return [
            _turn(row) for row in self._db.execute("SELECT * FROM turns WHERE status = ? ORDER BY seq", (TurnStatus.WAITING,))
        ]

    def ready(self) -> list[JudgedTurn]:
        """Turns with a signal that are in no batch yet, in the order in which they were judged."""
        rows = self._db.execute(f"{_JUDGED} WHERE t.status = ? ORDER BY j.seq", (TurnStatus.READY,))
        return [_judged(row) for row in rows]

    def turns(self, turn_ids: Sequence[str]) -> list[JudgedTurn]:
        """The judged turns with these ids, in this order. Raises LedgerError if one is missing."""
        found: dict[str, JudgedTurn] = {}
        for turn_id in turn_ids:
            row = self._db.execute(f"{_JUDGED} WHERE t.turn_id = ?", (turn_id,)).fetchone()
            if row is None:
                raise LedgerError(f"turn {turn_id!r} is named by a step but is not in the ledger, or was never judged")
            found[turn_id] = _judged(row)
        return [found[turn_id] for turn_id in turn_ids]

    def count(self, status: TurnStatus) -> int:
        """Number of turns in a status."""
        return int(self._db.execute("SELECT COUNT(*) FROM turns WHERE status = ?", (status,)).fetchone()[0])

    def recent(self, limit: int) -> list[dict[str, Any]]:
        """The newest turns with their status and verdict, for people (`openclaw-rl turns`)."""
        rows = self._db.execute(
            "SELECT t.*, j.reward, j.hints FROM turns t LEFT JOIN judgements j USING (turn_id) ORDER BY t.seq DESC LIMIT ?",
            (limit,),
        )
        return [
            {
                "turn_id": row["turn_id"],
                "session_id": row["session_id"],
                "status": row["status"],
                "drop_reason": row["drop_reason"],
                "step": row["step"],
                "version": row["weight_version"],
                "answer": json.loads(row["body"])["answer"],
                "next_state": row["next_text"],
                "reward": row["reward"],
                "hints": json.loads(row["hints"]) if row["hints"] else [],
            }
            for row in rows
        ]

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
        return _step(row) if row else None

    def steps(self) -> list[StepRecord]:
        """All steps, in order."""
        return [_step(row) for row in self._db.execute("SELECT * FROM steps ORDER BY step")]

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
        self._db.execute(
            "INSERT INTO outcomes (session_id, step, persona, first, satisfied, relevant, problem) "
            "VALUES (?, ?, ?, ?, ?, ?, ?)",
            (
                outcome.session_id,
                step,
                outcome.persona,
                outcome.first,
                outcome.satisfied,
                outcome.relevant,
                outcome.problem,
            ),
        )

    def outcomes(self, step: int) -> list[Outcome]:
        """What the feeder said during a step."""
        rows = self._db.execute("SELECT * FROM outcomes WHERE step = ? ORDER BY seq", (step,))
        return [
            Outcome(r["session_id"], r["persona"], bool(r["first"]), bool(r["satisfied"]), bool(r["relevant"]), r["problem"])
            for r in rows
        ]

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


def _turn_json(turn: Turn) -> str:
    """Not by ``asdict`` as a whole: it would copy every id, and this is on the way of every answer."""
    return json.dumps({f.name: getattr(turn, f.name) for f in fields(turn)} | {"sampling": asdict(turn.sampling)})


def _turn(row: sqlite3.Row) -> Turn:
    body = json.loads(row["body"])
    sampling = body.pop("sampling")
    return Turn(
        **{
            **body,
            "messages": tuple(body["messages"]),
            "prompt_ids": tuple(body["prompt_ids"]),
            "response_ids": tuple(body["response_ids"]),
            "rollout_logprobs": tuple(body["rollout_logprobs"]),
            "version_spans": tuple((version, count) for version, count in body["version_spans"]),
            "tool_calls": tuple(body["tool_calls"]),
            "finish_reason": FinishReason(body["finish_reason"]),
        },
        sampling=Sampling(**{**sampling, "stop": tuple(sampling["stop"])}),
    )


def _judged(row: sqlite3.Row) -> JudgedTurn:
    votes = tuple(Vote(Question(v["question"]), v["value"], v["hint"], v["raw"]) for v in json.loads(row["votes"]))
    return JudgedTurn(_turn(row), Judgement(row["turn_id"], row["reward"], tuple(json.loads(row["hints"])), votes))


def _step(row: sqlite3.Row) -> StepRecord:
    return StepRecord(
        row["step"],
        StepState(row["state"]),
        tuple(json.loads(row["turn_ids"])),
        row["version"],
        bool(row["skipped"]),
        json.loads(row["metrics"]),
    )
