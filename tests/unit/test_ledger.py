"""The ledger: nothing acknowledged is lost, nothing counts twice."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from openclaw_core.inspection.reader import LedgerReader
from openclaw_core.ledger import JudgedTurn, Ledger, LedgerError, Outcome, StepState, TurnStatus
from openclaw_core.ledger_rows import turn_json
from openclaw_core.types import DropReason, FinishReason, Judgement, NextState, Question, Sampling, Turn, Vote


def make_turn(turn_id: str = "t1", **changes: object) -> Turn:
    values: dict[str, object] = {
        "turn_id": turn_id,
        "session_id": "s1",
        "index": 0,
        "messages": ({"role": "user", "content": "What is 2+2?"},),
        "answer": "Four — 4 ✓",
        "prompt_ids": (1, 2, 3),
        "response_ids": (4, 5),
        "rollout_logprobs": (-0.1, -1.0 / 3.0),
        "sampling": Sampling(temperature=0.7, max_new_tokens=8, stop=("x",)),
        "weight_version": 0,
        "finish_reason": FinishReason.STOP,
        "version_spans": ((0, 2),),
        "hint_offset": 2,
        "created_at": 1.5,
        "generate_s": 0.25,
    }
    return Turn(**{**values, **changes})  # type: ignore[arg-type]


def make_judgement(turn_id: str = "t1", reward: int = 1, hints: tuple[str, ...] = ()) -> Judgement:
    return Judgement(turn_id, reward, hints, (Vote(Question.REWARD, reward, None, f"\\boxed{{{reward}}}"),))


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path / "ledger.sqlite")


def judged(ledger: Ledger, turn_id: str, **kwargs: object) -> None:
    ledger.add_turn(make_turn(turn_id))
    ledger.set_next_state(turn_id, NextState("user", "Thanks!"))
    ledger.add_judgement(make_judgement(turn_id, **kwargs))  # type: ignore[arg-type]


def test_a_turn_comes_back_exactly_as_it_was_stored(ledger: Ledger) -> None:
    turn = make_turn()
    ledger.add_turn(turn)
    assert ledger.waiting() == [turn]


def test_a_turn_id_is_stored_once(ledger: Ledger) -> None:
    ledger.add_turn(make_turn())
    with pytest.raises(Exception, match="UNIQUE"):
        ledger.add_turn(make_turn())


def test_ready_turns_are_in_the_order_of_their_verdicts(ledger: Ledger) -> None:
    for turn_id in ("a", "b"):
        ledger.add_turn(make_turn(turn_id))
        ledger.set_next_state(turn_id, NextState("user", "Thanks!"))
    ledger.add_judgement(make_judgement("b"))
    ledger.add_judgement(make_judgement("a", reward=-1, hints=("Be brief, please.",)))
    assert [j.turn.turn_id for j in ledger.ready()] == ["b", "a"]
    assert ledger.ready()[1].judgement == make_judgement("a", reward=-1, hints=("Be brief, please.",))


def test_a_turn_without_a_signal_fills_no_place(ledger: Ledger) -> None:
    judged(ledger, "a", reward=0)
    assert ledger.ready() == []
    assert ledger.count(TurnStatus.NO_SIGNAL) == 1


def test_a_turn_without_a_next_state_is_dropped_with_its_reason(ledger: Ledger, tmp_path: Path) -> None:
    ledger.add_turn(make_turn())
    ledger.set_next_state("t1", DropReason.HISTORY_DIVERGED)
    assert ledger.count(TurnStatus.DROPPED) == 1
    with LedgerReader(tmp_path / "ledger.sqlite") as reader:
        assert reader.turn("t1").drop_reason == DropReason.HISTORY_DIVERGED
    assert ledger.waiting() == []


def test_a_turn_that_waits_no_longer_gets_no_second_next_state(ledger: Ledger) -> None:
    judged(ledger, "a")
    for state in (DropReason.SESSION_IDLE, NextState("user", "Again.")):
        with pytest.raises(LedgerError, match="'ready'"):
            ledger.set_next_state("a", state)
    assert [j.turn.turn_id for j in ledger.ready()] == ["a"]


def test_a_batched_turn_cannot_be_batched_again_and_the_failed_step_leaves_no_trace(ledger: Ledger) -> None:
    judged(ledger, "a")
    judged(ledger, "b")
    ledger.open_step(1, ["a"])
    with pytest.raises(LedgerError, match="'a'"):
        ledger.open_step(2, ["b", "a"])
    assert ledger.step(2) is None
    assert [j.turn.turn_id for j in ledger.ready()] == ["b"]


def test_a_step_goes_from_collected_to_reported_and_keeps_its_order(ledger: Ledger) -> None:
    for turn_id in ("a", "b", "c"):
        judged(ledger, turn_id)
    ledger.open_step(1, ["c", "a"])
    assert ledger.next_step() == 1
    ledger.record_training(1, version=1, skipped=False, metrics={"x": 1.5})
    ledger.advance_step(1, StepState.PUBLISHED)
    ledger.advance_step(1, StepState.REPORTED, {"x": 2.0})
    record = ledger.step(1)
    assert record is not None
    assert (record.state, record.turn_ids, record.version, record.metrics) == (StepState.REPORTED, ("c", "a"), 1, {"x": 2.0})
    assert [j.turn.turn_id for j in ledger.turns(record.turn_ids)] == ["c", "a"]
    assert ledger.next_step() == 2


def test_the_samples_of_a_skipped_step_are_not_used_again(ledger: Ledger) -> None:
    judged(ledger, "a")
    ledger.open_step(1, ["a"])
    ledger.record_training(1, version=0, skipped=True, metrics={})
    assert ledger.ready() == []
    assert ledger.count(TurnStatus.SKIPPED) == 1


def test_skips_in_a_row_are_counted_from_the_newest_step(ledger: Ledger) -> None:
    assert ledger.consecutive_skips() == 0
    for step, skipped in enumerate((True, False, True, True), start=1):
        judged(ledger, f"turn {step}")
        ledger.open_step(step, [f"turn {step}"])
        ledger.record_training(step, version=min(step, 1), skipped=skipped, metrics={})
    judged(ledger, "not trained yet")
    ledger.open_step(5, ["not trained yet"])
    assert ledger.consecutive_skips() == 2
    assert [record.skipped for record in ledger.steps()] == [True, False, True, True, False]


def test_position_says_how_far_turns_verdicts_and_problems_have_come(ledger: Ledger) -> None:
    assert ledger.position() == {"turns": 0, "judgements": 0, "problems": 0}
    judged(ledger, "a")
    ledger.add_turn(make_turn("b"))
    ledger.add_outcome(Outcome("s", "student", first=True, satisfied=True, relevant=True, problem=7), step=1)
    ledger.add_outcome(Outcome("t", "student", first=True, satisfied=True, relevant=True, problem=4), step=1)
    assert ledger.position() == {"turns": 2, "judgements": 1, "problems": 7}


def test_outcomes_belong_to_the_step_in_which_they_came(ledger: Ledger) -> None:
    ledger.add_outcome(Outcome("s", "student", first=True, satisfied=True, relevant=False, problem=3), step=1)
    ledger.add_outcome(Outcome("s", "student", first=False, satisfied=True, relevant=True, problem=5), step=2)
    assert ledger.outcomes(1) == [Outcome("s", "student", True, True, False, 3)]


def test_a_judgement_comes_back_with_all_that_is_known_of_it(ledger: Ledger) -> None:
    votes = (
        Vote(Question.REWARD, -1, None, "\\boxed{-1}", seconds=0.5, prompt_tokens=100, completion_tokens=7),
        Vote(Question.HINT, None, None, "no answer within 60 s"),
    )
    refused = (("It is 72.", "quotes_answer"),)
    judgement = Judgement("a", -1, ("Be brief, please.",), votes, "judge-1", "reward 1, hint 2", refused, "grpo_only")
    ledger.add_turn(make_turn("a"))
    ledger.set_next_state("a", NextState("user", "No."))
    ledger.add_judgement(judgement)
    assert ledger.ready()[0].judgement == judgement


def test_hints_change_only_while_a_turn_is_ready(ledger: Ledger) -> None:
    judged(ledger, "a", reward=0, hints=("Be brief, please.",))
    without = make_judgement("a", reward=0)
    ledger.change_hints(without)
    assert ledger.count(TurnStatus.NO_SIGNAL) == 1
    with pytest.raises(LedgerError, match="'no_signal'"):
        ledger.change_hints(without)


def test_the_last_answer_that_was_told_is_the_sessions_known_answer(ledger: Ledger) -> None:
    assert ledger.session_facts.known_answer("s") is None
    for answer in ("71", "72", None):
        ledger.add_outcome(Outcome("s", "student", True, True, True, 1, answer), step=1)
    assert ledger.session_facts.known_answer("s") == "72"
    assert ledger.session_facts.known_answer("other") is None


OLDER = """
CREATE TABLE turns (seq INTEGER PRIMARY KEY AUTOINCREMENT, turn_id TEXT NOT NULL UNIQUE, session_id TEXT NOT NULL,
    weight_version INTEGER NOT NULL, body TEXT NOT NULL, status TEXT NOT NULL, next_role TEXT, next_text TEXT, drop_reason TEXT,
    step INTEGER);
CREATE INDEX turns_by_status ON turns (status);
CREATE INDEX turns_by_step ON turns (step);
CREATE TABLE judgements (seq INTEGER PRIMARY KEY AUTOINCREMENT, turn_id TEXT NOT NULL UNIQUE REFERENCES turns (turn_id),
    reward INTEGER NOT NULL, hints TEXT NOT NULL, votes TEXT NOT NULL, judged_at REAL NOT NULL);
CREATE TABLE steps (step INTEGER PRIMARY KEY, state TEXT NOT NULL, turn_ids TEXT NOT NULL, version INTEGER,
    skipped INTEGER NOT NULL DEFAULT 0, metrics TEXT NOT NULL DEFAULT '{}', opened_at REAL NOT NULL);
CREATE TABLE outcomes (seq INTEGER PRIMARY KEY AUTOINCREMENT, session_id TEXT NOT NULL, step INTEGER NOT NULL,
    persona TEXT NOT NULL, first INTEGER NOT NULL, satisfied INTEGER NOT NULL, relevant INTEGER NOT NULL,
    problem INTEGER NOT NULL);
CREATE INDEX outcomes_by_step ON outcomes (step);
"""
"""The tables before they had a version."""


def test_a_ledger_of_an_earlier_version_opens_and_goes_on(tmp_path: Path) -> None:
    path, turn = tmp_path / "old.sqlite", make_turn("a")
    with contextlib.closing(sqlite3.connect(path)) as old, old:
        old.executescript(OLDER)
        old.execute(
            "INSERT INTO turns (turn_id, session_id, weight_version, body, status, next_role, next_text) "
            "VALUES ('a', 's1', 0, ?, 'ready', 'user', 'No.')",
            (turn_json(turn),),
        )
        vote = json.dumps([{"question": "reward", "value": -1, "hint": None, "raw": "x"}])
        old.execute("INSERT INTO judgements (turn_id, reward, hints, votes, judged_at) VALUES ('a', -1, '[]', ?, 1.0)", (vote,))
        old.execute("INSERT INTO outcomes VALUES (1, 's1', 1, 'student', 1, 0, 1, 3)")
    for _ in range(2):  # brought up to date once, then opened as it is
        ledger = Ledger(path)
        (found,) = ledger.ready()
        assert found == JudgedTurn(turn, Judgement("a", -1, (), (Vote(Question.REWARD, -1, None, "x"),)))
        assert ledger.outcomes(1) == [Outcome("s1", "student", True, False, True, 3)]
        ledger.close()
    ledger = Ledger(path)
    judged(ledger, "b", reward=1)
    assert [ready.turn.turn_id for ready in ledger.ready()] == ["a", "b"]


def test_an_upgraded_ledger_has_the_tables_of_a_new_one(tmp_path: Path) -> None:
    def columns(path: Path) -> dict[str, set[tuple[str, ...]]]:
        with contextlib.closing(sqlite3.connect(path)) as db:
            tables = [row[0] for row in db.execute("SELECT name FROM sqlite_master WHERE type IN ('table', 'index')")]
            return {name: {row[1:5] for row in db.execute(f"PRAGMA table_info({name})")} for name in tables}

    with contextlib.closing(sqlite3.connect(tmp_path / "old.sqlite")) as old:
        old.executescript(OLDER)
    for name in ("old", "new"):
        Ledger(tmp_path / f"{name}.sqlite").close()
    assert columns(tmp_path / "old.sqlite") == columns(tmp_path / "new.sqlite")


@pytest.mark.parametrize(
    ("prepare", "complaint"),
    [
        ("PRAGMA user_version = 99", "has schema 99, this version of the project knows up to 1"),
        ("CREATE TABLE something (x INTEGER)", "cannot be brought from schema 0 to 1"),
    ],
)
def test_a_ledger_that_is_not_understood_is_refused_and_left_as_it_is(tmp_path: Path, prepare: str, complaint: str) -> None:
    path = tmp_path / "other.sqlite"
    with contextlib.closing(sqlite3.connect(path)) as other, other:
        other.executescript(prepare)
    with pytest.raises(LedgerError, match=complaint):
        Ledger(path)
    with contextlib.closing(sqlite3.connect(path)) as other:
        assert {row[0] for row in other.execute("SELECT name FROM sqlite_master")} <= {"something"}


def test_everything_acknowledged_survives_kill_9(tmp_path: Path) -> None:
    """A child stores turns for ever and says so line by line; what it said before SIGKILL must be there."""
    code = (
        "import sys; sys.path.insert(0, '.')\n"
        "from pathlib import Path\n"
        "from tests.unit.test_ledger import Ledger, make_turn\n"
        f"ledger = Ledger(Path({str(tmp_path / 'l.sqlite')!r}))\n"
        "for i in range(100000):\n"
        "    ledger.add_turn(make_turn(f't{i}')); print(i, flush=True)\n"
    )
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    acknowledged = [child.stdout.readline() for _ in range(50)]
    os.kill(child.pid, signal.SIGKILL)
    acknowledged += child.stdout.readlines()
    child.wait(10)
    stored = {turn.turn_id for turn in Ledger(tmp_path / "l.sqlite").waiting()}
    assert {f"t{line.strip()}" for line in acknowledged if line.endswith("\n")} <= stored
