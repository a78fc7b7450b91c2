"""The ledger's tables, and how a ledger that an earlier version of the project wrote is brought to them.

``PRAGMA user_version`` counts the schema. A ledger of a version that is not known is refused, never guessed at.
"""

from __future__ import annotations

import sqlite3

from openclaw_core.ledger_rows import LedgerError

VERSION = 1

_SCHEMA = """
CREATE TABLE turns (
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
CREATE INDEX turns_by_status ON turns (status);
CREATE INDEX turns_by_step ON turns (step);
CREATE INDEX turns_by_session ON turns (session_id);
CREATE TABLE judgements (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    turn_id TEXT NOT NULL UNIQUE REFERENCES turns (turn_id),
    reward INTEGER NOT NULL,
    hints TEXT NOT NULL,
    votes TEXT NOT NULL,
    judged_at REAL NOT NULL,
    model TEXT NOT NULL DEFAULT '',
    prompt_version TEXT NOT NULL DEFAULT '',
    refused TEXT NOT NULL DEFAULT '[]',
    policy TEXT NOT NULL DEFAULT ''
);
CREATE TABLE steps (
    step INTEGER PRIMARY KEY,
    state TEXT NOT NULL,
    turn_ids TEXT NOT NULL,
    version INTEGER,
    skipped INTEGER NOT NULL DEFAULT 0,
    metrics TEXT NOT NULL DEFAULT '{}',
    opened_at REAL NOT NULL
);
CREATE TABLE outcomes (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    session_id TEXT NOT NULL,
    step INTEGER NOT NULL,
    persona TEXT NOT NULL,
    first INTEGER NOT NULL,
    satisfied INTEGER NOT NULL,
    relevant INTEGER NOT NULL,
    problem INTEGER NOT NULL,
    ground_truth TEXT
);
CREATE INDEX outcomes_by_step ON outcomes (step);
CREATE INDEX outcomes_by_session ON outcomes (session_id);
"""

# Apart from turns: those rows are long, and every answer asks for a few of these.
_SESSIONS = """
CREATE TABLE signatures (
    session_id TEXT NOT NULL,
    turn_index INTEGER NOT NULL,
    signature TEXT NOT NULL,
    PRIMARY KEY (session_id, turn_index)
) WITHOUT ROWID;
CREATE TABLE looping_sessions (
    session_id TEXT PRIMARY KEY,
    turn_id TEXT NOT NULL,
    marked_at REAL NOT NULL
);
"""

# From a ledger without a version (user_version 0) that has tables already.
_FROM_0 = """
CREATE INDEX turns_by_session ON turns (session_id);
ALTER TABLE judgements ADD COLUMN model TEXT NOT NULL DEFAULT '';
ALTER TABLE judgements ADD COLUMN prompt_version TEXT NOT NULL DEFAULT '';
ALTER TABLE judgements ADD COLUMN refused TEXT NOT NULL DEFAULT '[]';
ALTER TABLE judgements ADD COLUMN policy TEXT NOT NULL DEFAULT '';
ALTER TABLE outcomes ADD COLUMN ground_truth TEXT;
CREATE INDEX outcomes_by_session ON outcomes (session_id);
"""


def prepare(db: sqlite3.Connection, name: str) -> None:
    """Make the tables of an empty ledger, or bring an older one up to date, whole or not at all.

    Raises:
        LedgerError: ``name`` was written by a newer version of the project, or is no ledger.
    """
    found = int(db.execute("PRAGMA user_version").fetchone()[0])
    if found > VERSION:
        raise LedgerError(
            f"{name} has schema {found}, this version of the project knows up to {VERSION}; open the run with the version "
            "that wrote it, or start a new run"
        )
    if found == VERSION:
        return
    tables = {row[0] for row in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    try:
        db.executescript(f"BEGIN IMMEDIATE;{_FROM_0 if tables else _SCHEMA}{_SESSIONS}PRAGMA user_version = {VERSION};COMMIT;")
    except sqlite3.Error as error:
        if db.in_transaction:
            db.execute("ROLLBACK")
        if not isinstance(error, sqlite3.OperationalError) or not tables:
            raise
        raise LedgerError(f"{name} cannot be brought from schema {found} to {VERSION}: {error}; start a new run") from error
