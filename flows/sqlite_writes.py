"""Prefect's server on SQLite: a transaction that will write takes the write lock when it begins, and not at its first write.

Prefect begins them DEFERRED. One that reads, and only then writes, is refused by SQLite at once where another write came in
between (SQLITE_BUSY_SNAPSHOT, https://www.sqlite.org/isolation.html), whatever the time-out; the request is answered 503 and
Prefect's client waits two seconds. Begun IMMEDIATE it waits for the other write, which takes milliseconds.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sqlalchemy import URL, Engine, event
from sqlalchemy.engine.interfaces import CreateEnginePlugin

NAME = "openclaw_immediate"
"""Of the entry point in pyproject.toml, for ``?plugin=`` of a database's URL."""


def with_immediate_writes(database: Path) -> str:
    """URL of the database, for PREFECT_SERVER_DATABASE_CONNECTION_URL."""
    return f"sqlite+aiosqlite:///{database}?plugin={NAME}"


class ImmediateWrites(CreateEnginePlugin):
    """Engine plugin (SQLAlchemy's term): every ``BEGIN DEFERRED`` of this engine becomes ``BEGIN IMMEDIATE``."""

    def update_url(self, url: URL) -> URL:
        return url.difference_update_query(["plugin"])

    def engine_created(self, engine: Engine) -> None:
        event.listen(engine, "before_cursor_execute", _immediate, retval=True)


def _immediate(_connection: Any, _cursor: Any, statement: str, parameters: Any, *_rest: Any) -> tuple[str, Any]:
    return ("BEGIN IMMEDIATE" if statement == "BEGIN DEFERRED" else statement), parameters
