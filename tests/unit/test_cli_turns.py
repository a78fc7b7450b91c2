"""`openclaw-rl turns` as people use it: a terminal or a pipe, a file, and clear refusals."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyarrow import parquet
from typer.testing import CliRunner, Result

from openclaw_core.cli import app
from openclaw_core.errors import OpenClawError
from openclaw_core.inspection.text import one_line, printable
from openclaw_core.ledger import Ledger
from openclaw_core.rundir import RunDir
from openclaw_core.types import Turn
from tests.inspection_parts import distilled, reward_only, small_run

GOLDEN = Path(__file__).parent.parent / "golden" / "turns_show.txt"
STEERS = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return small_run(tmp_path)


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["turns", *arguments])


def fails(*arguments: str) -> str:
    result = invoke(*arguments)
    assert isinstance(result.exception, OpenClawError), result.output
    return str(result.exception)


def test_list_has_a_row_a_turn_within_100_columns(run: RunDir) -> None:
    result = invoke("list", str(run.path))
    assert result.exit_code == 0
    lines = result.output.splitlines()
    assert max(map(len, lines)) <= 100
    assert [line[:8] for line in lines if re.match(r"\w{4}", line)][1:] == [
        "dddd-too",
        "cccc-wai",
        "bbbb-dro",
        "aaaa2222",
        "aaaa1111",
    ]
    row = next(line for line in lines if line.startswith("aaaa1111"))
    assert row.split()[1:8] == ["student-17", "0", "1", "0", "-1", "2", "trained"]
    assert "session_idle" in result.output and "→ user: Please, no lists" in result.output


@pytest.mark.parametrize(
    ("options", "found"),
    [
        (["--reward", "-1"], ["aaaa1111-trained"]),
        (["--status", "waiting", "-n", "1"], ["dddd-tool"]),
        (["--drop-reason", "session_idle"], ["bbbb-dropped"]),
        (["--step", "1", "--oldest-first"], ["aaaa1111-trained", "aaaa2222-masked"]),
        (["--session", "teacher", "--text", "well", "--min-version", "2", "--max-version", "2"], ["cccc-waiting"]),
        (["--min-version", "4"], []),
    ],
)
def test_list_filters_and_speaks_json(run: RunDir, options: list[str], found: list[str]) -> None:
    result = invoke("list", str(run.path), "--json", *options)
    assert [turn["turn_id"] for turn in json.loads(result.stdout)["turns"]] == found


@pytest.mark.parametrize("options", [["--reward", "2"], ["--status", "lost"], ["--limit", "0"], ["--step", "0"]])
def test_values_that_cannot_be_are_refused(run: RunDir, options: list[str]) -> None:
    assert invoke("list", str(run.path), *options).exit_code == 2


def test_show_is_as_in_the_golden_file(run: RunDir) -> None:
    shown = invoke("show", str(run.path), "aaaa1").output
    shown = re.sub(r"judge-8b, \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC", "judge-8b, <when it judged>", shown)
    assert shown == GOLDEN.read_text()
    assert max(map(len, shown.splitlines())) <= 100


@pytest.mark.parametrize("command", [["list"], ["show", "dddd", "--full"], ["show", "dddd"]])
def test_nothing_in_an_answer_steers_the_terminal(run: RunDir, command: list[str]) -> None:
    shown = invoke(command[0], str(run.path), *command[1:]).output
    assert "gnp" in shown
    assert not STEERS.search(shown)


@pytest.mark.parametrize(
    ("turn", "says"),
    [
        ("aaaa2", "masked: logprob_mismatch; in the batch of step 1, without a share in its gradient"),
        ("bbbb", "dropped: session_idle"),
        ("cccc", "waiting: nobody has reacted to it yet"),
        ("cccc", "The turn was in no training step"),
    ],
)
def test_show_says_what_became_of_a_turn(run: RunDir, turn: str, says: str) -> None:
    assert says in invoke("show", str(run.path), turn).output


def test_show_says_why_there_is_no_table(run: RunDir) -> None:
    (run.tables / "step-000001.npz").rename(run.tables / "step-000002.npz")
    assert "Step 1 has no table; steps 2 to 2 have one" in invoke("show", str(run.path), "aaaa1").output


def test_full_shows_all_that_is_shortened_otherwise(run: RunDir) -> None:
    ledger = Ledger(run.ledger_file)
    turn = ledger.waiting()[0]
    ledger.add_turn(Turn(**{**as_values(turn), "turn_id": "eeee", "answer": "word " * 200 + "the end"}))
    ledger.close()
    assert "the end" not in invoke("show", str(run.path), "eeee").output
    assert "the end" in invoke("show", str(run.path), "eeee", "--full").output


def test_a_run_or_turn_that_is_not_there_is_named(run: RunDir) -> None:
    assert "give more of it" in fails("show", str(run.path), "aaaa")
    assert "no turn's id begins with 'nope'" in fails("show", str(run.path), "nope")
    assert "no run 'other'" in fails("list", "other", "--runs", str(run.path.parent))


def as_values(turn: Turn) -> dict[str, Any]:
    return {name: getattr(turn, name) for name in Turn.__dataclass_fields__}


def exported(run: RunDir, out: Path, *options: str) -> list[dict[str, Any]]:
    result = invoke("export", str(run.path), "--out", str(out), *options)
    assert result.exit_code == 0, result.output
    if out.suffix == ".jsonl":
        return [json.loads(line) for line in out.read_text().splitlines()]
    rows = parquet.read_table(out).to_pylist()
    for row in rows:
        row |= {name: json.loads(row[name]) for name in ("messages", "tool_calls")}
        row["version_spans"] = [[span["version"], span["tokens"]] for span in row["version_spans"]]
        if row["judgement"]:
            row["judgement"]["refused"] = [[each["hint"], each["reason"]] for each in row["judgement"]["refused"]]
    return rows


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_an_export_holds_what_the_ledger_holds(run: RunDir, tmp_path: Path, suffix: str) -> None:
    rows = exported(run, tmp_path / f"turns{suffix}")
    ledger = Ledger(run.ledger_file)
    stored = [*(judged.turn for judged in ledger.turns(["aaaa1111-trained", "aaaa2222-masked"])), *ledger.waiting()]
    ledger.close()
    by_id = {row["turn_id"]: row for row in rows}
    assert list(by_id) == ["aaaa1111-trained", "aaaa2222-masked", "bbbb-dropped", "cccc-waiting", "dddd-tool"]
    for turn in stored:
        row = by_id[turn.turn_id]
        values = json.loads(json.dumps({**as_values(turn), "sampling": turn.sampling.__class__.__dataclass_fields__ and None}))
        del values["sampling"]
        if suffix == ".parquet" and turn.turn_id == "dddd-tool":
            values["answer"] = values["answer"].replace("\ud800", "\\ud800")  # which Parquet's UTF-8 cannot hold
        assert {name: row[name] for name in values} == values
        assert row["sampling"]["temperature"] == turn.sampling.temperature
        assert row["sampling"]["stop"] == list(turn.sampling.stop)
    judgement = by_id["aaaa1111-trained"]["judgement"]
    assert judgement["votes"][1] == {
        "question": "reward",
        "value": None,
        "hint": None,
        "raw": "timed out after 60 s",
        "seconds": None,
        "prompt_tokens": None,
        "completion_tokens": None,
    }
    assert judgement["refused"] == [["It is 3.", "quotes_answer"]] and judgement["model"] == "judge-8b"
    assert by_id["cccc-waiting"]["judgement"] is None and by_id["cccc-waiting"]["tokens"] is None


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_an_export_holds_the_tables_of_tokens(run: RunDir, tmp_path: Path, suffix: str) -> None:
    tokens = {row["turn_id"]: row["tokens"] for row in exported(run, tmp_path / f"turns{suffix}", "--step", "1")}
    for sample in (distilled("aaaa1111-trained"), reward_only("aaaa2222-masked")):
        found = tokens[sample.sample_id]
        assert found.pop("hints") == list(sample.hints) and found.pop("masked") == sample.masked
        for name, values in found.items():
            column = getattr(sample.columns, name)
            array = np.array([[np.nan if v is None else v for v in np.ravel(row)] for row in values], column.dtype)
            np.testing.assert_array_equal(array.reshape(column.shape), column)
    assert all(row["tokens"] is None for row in exported(run, tmp_path / f"none{suffix}", "--no-tables"))


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_both_forms_have_the_same_columns_and_nothing_is_left_out(run: RunDir, tmp_path: Path, suffix: str) -> None:
    """A field that is new in the ledger's nouns must get a place in the Parquet schema."""
    (row,) = exported(run, tmp_path / f"turns{suffix}", "--reward", "-1")
    (expected,) = json.loads(invoke("list", str(run.path), "--reward", "-1", "--json").output)["turns"]
    assert list(row) == list(expected)
    for name in ("sampling", "next_state", "judgement"):
        assert row[name] == expected[name]


def test_exports_of_no_turns_are_whole_files_too(run: RunDir, tmp_path: Path) -> None:
    for suffix in (".jsonl", ".parquet"):
        assert exported(run, tmp_path / f"none{suffix}", "--step", "9") == []


def test_an_export_that_cannot_be_made_leaves_nothing(run: RunDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "must end with .jsonl or .parquet" in fails("export", str(run.path), "--out", str(tmp_path / "turns.csv"))
    (tmp_path / "there.jsonl").write_text("mine")
    assert "exists; remove it" in fails("export", str(run.path), "--out", str(tmp_path / "there.jsonl"))
    assert "cannot be written" in fails("export", str(run.path), "--out", str(tmp_path / "no" / "turns.jsonl"))
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    says = fails("export", str(run.path), "--out", str(tmp_path / "turns.parquet"))
    assert "install openclaw-rl[data], or export to .jsonl" in says
    assert {file.name for file in tmp_path.iterdir()} == {"runs", "there.jsonl"}
    assert (tmp_path / "there.jsonl").read_text() == "mine"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\x1b[31mb", "a␛[31mb"),
        ("\x07\x00\x7f", "␇␀␡"),
        ("\u202eabc\u2066", "\\u202eabc\\u2066"),
        ("\x9b2J", "\\u009b2J"),
        ("\ud800", "\\ud800"),
        ("👩‍👩‍👧 नमस्ते 谢谢", "👩‍👩‍👧 नमस्ते 谢谢"),
        ("a\nb\tc\r", "a b c␍"),
    ],
)
def test_characters_that_steer_are_made_visible(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_one_line_says_that_it_leaves_something_out() -> None:
    assert one_line("one  two\nthree", 9) == "one two…"
    assert one_line("short", 5) == "short"


def test_turns_are_shown_where_only_the_core_is_installed(run: RunDir) -> None:
    """As on a launch machine: no torch, no tokenizer, no pyarrow."""
    absent = ("torch", "jaxtyping", "megatron", "transformers", "tokenizers", "pyarrow")
    code = (
        f"import sys; sys.modules.update(dict.fromkeys({absent}))\n"
        "from openclaw_core.cli import app; app(['turns', 'show', sys.argv[1], 'aaaa1'])"
    )
    done = subprocess.run([sys.executable, "-c", code, str(run.path)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "c* at 3 tokens" in done.stdout
