"""A run's ledger, read: a connection that cannot write and takes no lock that a live service would wait for."""

from __future__ import annotations

import sqlite3
from collections.abc import Generator
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import quote

from openclaw_core.inspection.search import mentions
from openclaw_core.ledger_rows import (
    JUDGED_TURNS,
    LedgerError,
    Outcome,
    StepRecord,
    TurnStatus,
    judgement_of,
    next_state_of,
    outcome_of,
    step_of,
    turn_of,
)
from openclaw_core.ledger_schema import VERSION
from openclaw_core.types import DropReason, Judgement, NextState, Turn

BUSY_S = 10.0
"""How long to wait where the service is just making or ending its write-ahead log."""
_CONDITIONS = {
    "session": "substr(t.session_id, 1, length(:session)) = :session",
    "step": "t.step = :step",
    "status": "t.status = :status",
    "drop_reason": "t.drop_reason = :drop_reason",
    "reward": "j.reward = :reward",
    "min_version": "t.weight_version >= :min_version",
    "max_version": "t.weight_version <= :max_version",
    "text": "mentions(:text, t.body, t.next_text, j.hints)",
}
_TURNS = JUDGED_TURNS.replace(" JOIN ", " LEFT JOIN ")


@dataclass(frozen=True, slots=True)
class TurnRecord:
    """A turn with everything that the ledger knows of it."""

    turn: Turn
    status: TurnStatus
    drop_reason: DropReason | None
    step: int | None
    """The step whose batch it was in, or in which it was dropped."""
    next_state: NextState | None
    judgement: Judgement | None
    judged_at: float | None
    """Unix time, seconds."""


@dataclass(frozen=True, slots=True)
class TurnFilter:
    """Which turns are wanted; None: any. All that is given must hold."""

    session: str | None = None
    """A session's id, or its beginning."""
    step: int | None = None
    status: TurnStatus | None = None
    drop_reason: DropReason | None = None
    reward: int | None = None
    """Of turns that are judged."""
    min_version: int | None = None
    """Of the oldest token, as ``max_version``; both ends count."""
    max_version: int | None = None
    text: str | None = None
    """Found in messages, answer, tool calls, next state or hints, whatever the case."""

    def where(self) -> str:
        """The SQL condition, with the fields' names as parameters."""
        conditions = [sql for name, sql in _CONDITIONS.items() if getattr(self, name) is not None]
        return f"WHERE {' AND '.join(conditions)}" if conditions else ""


class LedgerReader:
    """See the module's docstring. A context manager; one thread."""

    def __init__(self, path: Path) -> None:
        """Raises LedgerError where there is no ledger, or one that this version cannot read."""
        if not path.exists():
            raise LedgerError(f"{path} does not exist: the run's service has not been started yet")
        self._path = path
        try:
            self._db = self._connect()
            version = int(self._db.execute("PRAGMA user_version").fetchone()[0])
        except sqlite3.Error as error:
            raise LedgerError(f"{path} cannot be read as a ledger: {error}") from error
        if version != VERSION:
            self._db.close()
            mend = "resume the run once, which brings it up to date" if version < VERSION else "use the version that wrote it"
            raise LedgerError(f"{path} has schema {version}, this version of the project reads {VERSION}; {mend}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """End the connection."""
        self._db.close()

    def turns(
        self, wanted: TurnFilter | None = None, *, limit: int | None = None, newest_first: bool = True
    ) -> Generator[TurnRecord]:
        """The turns that are wanted, in the order in which they were captured or the other way round.

        They are those of the moment of the first one, whatever the service does until the last. While a client holds the
        iterator the service can write, but its log cannot be shortened: read to the end, or close it.
        """
        wanted = wanted or TurnFilter()
        order = "DESC" if newest_first else "ASC"
        sql = f"{_TURNS} {wanted.where()} ORDER BY t.seq {order} LIMIT :limit"
        for row in self._db.execute(sql, asdict(wanted) | {"limit": -1 if limit is None else limit}):
            yield _record(row)

    def turn(self, beginning: str) -> TurnRecord:
        """The turn whose id begins so. Raises LedgerError where there is none or more than one."""
        found = "SELECT turn_id FROM turns WHERE substr(turn_id, 1, length(?1)) = ?1 ORDER BY seq LIMIT 6"
        ids = [row[0] for row in self._db.execute(found, (beginning,))] if beginning else []
        if beginning in ids:
            ids = [beginning]
        if not ids:
            raise LedgerError(f"no turn's id begins with {beginning!r}; `openclaw-rl turns list` shows the ids")
        if len(ids) > 1:
            more = ", …" if len(ids) > 5 else ""
            raise LedgerError(f"several turns' ids begin with {beginning!r}: {', '.join(ids[:5])}{more}; give more of it")
        return _record(self._db.execute(f"{_TURNS} WHERE t.turn_id = ?", (ids[0],)).fetchone())

    def step(self, step: int) -> StepRecord | None:
        """A step's record, or None if its batch has not closed."""
        row = self._db.execute("SELECT * FROM steps WHERE step = ?", (step,)).fetchone()
        return step_of(row) if row else None

    def outcomes(self, session_id: str) -> list[Outcome]:
        """What the feeder said of a session, oldest first."""
        rows = self._db.execute("SELECT * FROM outcomes WHERE session_id = ? ORDER BY seq", (session_id,))
        return [outcome_of(row) for row in rows]

    def _connect(self) -> sqlite3.Connection:
        """Read-only. SQLite needs its log's index beside the file even for reading, and makes it where it may."""
        uri = f"file:{quote(str(self._path.absolute()))}"
        try:
            return self._open(f"{uri}?mode=ro")
        except sqlite3.OperationalError:
            if self._path.with_name(f"{self._path.name}-wal").exists():
                raise
            # Without a log nobody is writing: the file is all there is, and may lie where nothing can be created.
            return self._open(f"{uri}?mode=ro&immutable=1")

    @staticmethod
    def _open(uri: str) -> sqlite3.Connection:
        db = sqlite3.connect(uri, uri=True, isolation_level=None, timeout=BUSY_S)
        try:
            db.row_factory = sqlite3.Row
            db.create_function("mentions", 4, mentions, deterministic=True)
            db.execute("SELECT 1 FROM sqlite_master").fetchone()
        except sqlite3.Error:
            db.close()
            raise
        return db


def _record(row: sqlite3.Row) -> TurnRecord:
    return TurnRecord(
        turn=turn_of(row),
        status=TurnStatus(row["status"]),
        drop_reason=None if row["drop_reason"] is None else DropReason(row["drop_reason"]),
        step=row["step"],
        next_state=next_state_of(row),
        judgement=None if row["reward"] is None else judgement_of(row),
        judged_at=row["judged_at"],
    )
