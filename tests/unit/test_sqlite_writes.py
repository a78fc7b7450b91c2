"""A write in between does not break a transaction of Prefect's server that has read first."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from pathlib import Path

import pytest
import sqlalchemy as sa
from prefect.server.database.configurations import AioSqliteConfiguration
from sqlalchemy.exc import OperationalError

from flows.sqlite_writes import with_immediate_writes

INSERT = sa.text("INSERT INTO t VALUES (1)")


@pytest.mark.parametrize("immediate", [False, True])
async def test_a_transaction_that_reads_and_then_writes(tmp_path: Path, immediate: bool) -> None:
    """``immediate`` False is what Prefect does by itself: where that passes one day, flows/sqlite_writes.py can go."""
    file = tmp_path / "prefect.db"
    database = AioSqliteConfiguration(with_immediate_writes(file) if immediate else f"sqlite+aiosqlite:///{file}")
    engine = await database.engine()
    async with engine.begin() as connection:
        await connection.execute(sa.text("CREATE TABLE t (n INTEGER)"))
    read = asyncio.Event()

    async def reads_and_writes() -> None:
        async with await database.session(engine) as session, database.begin_transaction(session):
            await session.execute(sa.text("SELECT count(*) FROM t"))
            read.set()
            await asyncio.sleep(0.2)
            await session.execute(INSERT)

    async def writes_in_between() -> None:
        await read.wait()
        async with await database.session(engine) as session, database.begin_transaction(session):
            await session.execute(INSERT)

    async with asyncio.timeout(30):
        between = asyncio.create_task(writes_in_between())
        with nullcontext() if immediate else pytest.raises(OperationalError, match="database is locked"):
            await reads_and_writes()
        await between
    async with engine.connect() as connection:
        assert (await connection.execute(sa.text("SELECT count(*) FROM t"))).scalar() == (2 if immediate else 1)
    await engine.dispose()
