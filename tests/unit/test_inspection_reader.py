"""Reading a ledger that a service may be writing: filters, unique beginnings, and no lock that anybody would notice."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from openclaw_core.inspection.reader import LedgerReader, TurnFilter
from openclaw_core.inspection.search import mentions
from openclaw_core.ledger import Ledger, LedgerError, TurnStatus
from openclaw_core.types import DropReason
from tests.inspection_parts import HINTS, small_run
from tests.unit.test_ledger import make_turn

ALL = ["aaaa1111-trained", "aaaa2222-masked", "bbbb-dropped", "cccc-waiting", "dddd-tool"]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return small_run(tmp_path).ledger_file


@pytest.fixture
def reader(path: Path) -> Iterator[LedgerReader]:
    with LedgerReader(path) as reader:
        yield reader


def ids(reader: LedgerReader, **wanted: Any) -> list[str]:
    return [record.turn.turn_id for record in reader.turns(TurnFilter(**wanted), newest_first=False)]


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ({}, ALL),
        ({"session": "ta-3"}, ALL[1:3]),
        ({"session": "t"}, ALL[1:4]),
        ({"session": "%"}, []),
        ({"step": 1}, ALL[:2]),
        ({"status": TurnStatus.WAITING}, ALL[3:]),
        ({"status": TurnStatus.TRAINED, "reward": 1}, [ALL[1]]),
        ({"drop_reason": DropReason.SESSION_IDLE}, [ALL[2]]),
        ({"reward": -1}, [ALL[0]]),
        ({"reward": 0}, []),
        ({"min_version": 2}, ALL[2:]),
        ({"min_version": 1, "max_version": 2}, ALL[1:4]),
        ({"max_version": 0}, [ALL[0]]),
        ({"text": "ROBE"}, [ALL[0]]),
        ({"text": "谢谢"}, [ALL[0]]),
        ({"text": "each number"}, [ALL[0]]),
        ({"text": "no such words"}, []),
        ({"text": "'; DROP TABLE turns; --"}, []),
    ],
)
def test_filters(reader: LedgerReader, wanted: dict[str, Any], found: list[str]) -> None:
    assert ids(reader, **wanted) == found


def test_newest_come_first_and_no_more_than_wanted(reader: LedgerReader) -> None:
    assert [record.turn.turn_id for record in reader.turns(limit=2)] == ALL[:-3:-1]


@pytest.mark.parametrize(("needle", "found"), [("robot", True), ("fiber.txt", True), ("user", False), ("function", False)])
def test_search_sees_what_was_said_and_not_how_it_is_stored(needle: str, found: bool) -> None:
    call = '{"id": "user", "type": "function", "function": {"name": "read", "arguments": "fiber.txt"}}'
    message = '{"role": "user", "content": [{"type": "text", "text": "A Robot"}]}'
    body = f'{{"messages": [{message}], "answer": "", "tool_calls": [{call}]}}'
    assert mentions(needle, body, None, None) is found


def test_a_turn_comes_with_all_that_is_known_of_it(reader: LedgerReader) -> None:
    record = reader.turn("aaaa1111-trained")
    assert record.status is TurnStatus.TRAINED and record.step == 1 and record.judged_at
    assert record.judgement is not None and record.judgement.hints == HINTS
    assert record.judgement.refused == (("It is 3.", "quotes_answer"),)
    assert record.next_state is not None and record.next_state.role == "user"
    step, (outcome,) = reader.step(1), reader.outcomes("student-17")
    assert step is not None and step.version == 1 and outcome.persona == "student"
    assert reader.turn("bbbb").drop_reason is DropReason.SESSION_IDLE
    assert reader.step(2) is None


@pytest.mark.parametrize(
    ("beginning", "says"),
    [
        ("aaaa", "several turns' ids begin with 'aaaa': aaaa1111-trained, aaaa2222-masked; give more of it"),
        ("zz", "no turn's id begins with 'zz'"),
        ("", "no turn's id begins with ''"),
        ("%", "no turn's id begins with '%'"),
    ],
)
def test_a_beginning_that_is_not_unique_or_unknown_is_refused(reader: LedgerReader, beginning: str, says: str) -> None:
    with pytest.raises(LedgerError) as error:
        reader.turn(beginning)
    assert says in str(error.value)


def test_a_whole_id_counts_even_where_another_begins_with_it(path: Path) -> None:
    ledger = Ledger(path)
    ledger.add_turn(make_turn("cccc"))
    ledger.close()
    with LedgerReader(path) as reader:
        assert reader.turn("cccc").turn.turn_id == "cccc"


def test_a_reader_can_neither_write_nor_stop_the_service_from_writing(path: Path) -> None:
    ledger = Ledger(path)
    with LedgerReader(path) as reader:
        rows = reader.turns(newest_first=False)
        next(rows)  # in the middle of reading
        ledger.add_turn(make_turn("new"))
        ledger.open_step(2, [])
        assert [record.turn.turn_id for record in rows] == ALL[1:]  # as it was when the reading began
        assert reader.turn("new").status is TurnStatus.WAITING
        with pytest.raises(sqlite3.OperationalError, match="readonly"):
            reader._db.execute("DELETE FROM turns")
    ledger.close()


def test_a_ledger_that_nobody_has_open_can_be_read_where_nothing_can_be_created(path: Path) -> None:
    """By a user who may only read: SQLite then cannot make its log's index beside the file."""
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch) / "run"
        directory.mkdir()
        shutil.copy(path, directory / "ledger.sqlite")
        for part, mode in ((Path(scratch), 0o755), (directory, 0o555), (directory / "ledger.sqlite", 0o444)):
            part.chmod(mode)
        code = (
            "import os, sys; from pathlib import Path; from openclaw_core.inspection.reader import LedgerReader\n"
            "if os.geteuid() == 0: os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
            "print(sum(1 for _ in LedgerReader(Path(sys.argv[1])).turns()))"
        )
        command = [sys.executable, "-c", code, str(directory / "ledger.sqlite")]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        directory.chmod(0o755)
        assert (done.stdout, done.returncode) == ("5\n", 0), done.stderr
        assert [file.name for file in directory.iterdir()] == ["ledger.sqlite"]


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda path: None, "does not exist: the run's service has not been started yet"),
        (
            lambda path: path.write_text("not a database, but long enough to be taken for one" * 20),
            "cannot be read as a ledger",
        ),
        (
            lambda path: sqlite3.connect(path).executescript("CREATE TABLE turns (a); PRAGMA user_version = 0;"),
            "resume the run",
        ),
        (lambda path: sqlite3.connect(path).executescript("CREATE TABLE t (a); PRAGMA user_version = 99;"), "has schema 99"),
    ],
)
def test_what_cannot_be_read_is_named(tmp_path: Path, make: Any, says: str) -> None:
    make(path := tmp_path / "ledger.sqlite")
    with pytest.raises(LedgerError, match=says):
        LedgerReader(path)
