"""What the openclaw CLI printed and wrote down → an answer, or the right kind of failure."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from openclaw_core.feeder.backoff import Unavailable
from openclaw_core.feeder.client import Answer
from openclaw_core.feeder.errors import FeederError, TaskFailed
from openclaw_core.feeder.openclaw_process import Finished
from openclaw_core.feeder.openclaw_turn import assistant_entries, last_json, read_turn

WARNING = "[agent/embedded] low context window: ctx=20000 (warn<32000)\n"


def record(id: str, text: str = "", stop_reason: str = "stop", error: str | None = None, role: str = "assistant") -> str:
    content = [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": text}]
    message = {"role": role, "content": content, "stopReason": stop_reason, "errorMessage": error}
    return json.dumps({"type": "message", "id": id, "message": message})


def sessions(folder: Path, *records: str) -> Path:
    (folder / "s.jsonl").write_text("\n".join(['{"type": "session", "id": "s"}', record("u", role="user"), *records, ""]))
    return folder


def printed(text: str | None = "Yes.", **meta: Any) -> str:
    payloads = [] if text is None else [{"text": text, "mediaUrl": None}]
    return json.dumps(
        {"payloads": payloads, "meta": {"aborted": False, "stopReason": "stop", "inner": {"payloads": 1}} | meta}, indent=2
    )


@pytest.mark.parametrize(
    ("stdout", "stderr"),
    [
        ("", WARNING + printed()),
        (printed(), ""),
        (printed(), WARNING + printed("other")),
        ("", printed("early") + "\n" + printed()),
    ],
    ids=["stderr", "stdout", "both", "two"],
)
def test_result_is_found_wherever_it_is_printed(tmp_path: Path, stdout: str, stderr: str) -> None:
    folder = sessions(tmp_path, record("old", "No."), record("new", "Yes."))
    assert read_turn(Finished(0, stdout, stderr), folder, {"old"}) == Answer("Yes.", truncated=False, version=None)


@pytest.mark.parametrize("text", ["", "{", "[1]", '{"a": 1}', "words {\n", '{"payloads": []'])
def test_what_is_no_result_is_not_taken_for_one(text: str) -> None:
    assert last_json(text) is None


def test_the_answer_is_the_last_of_the_turn_as_it_was_written_down(tmp_path: Path) -> None:
    folder = sessions(tmp_path, record("call", "I look.", "toolUse"), record("new", " Yes. \n", "length"))
    shown = printed("I look.\n\nYes.", stopReason="length")
    assert read_turn(Finished(0, "", shown), folder, set()) == Answer(" Yes. \n", truncated=True, version=None)


def test_the_answer_of_the_turn_before_is_not_taken_for_a_new_one(tmp_path: Path) -> None:
    with pytest.raises(TaskFailed, match="no new answer"):
        read_turn(Finished(0, "", printed("Yes.")), sessions(tmp_path, record("old", "Yes.")), {"old"})


def test_a_retry_that_succeeded_counts(tmp_path: Path) -> None:
    folder = sessions(tmp_path, record("1", "", "error", "503 later"), record("2", "Yes."))
    assert read_turn(Finished(0, "", printed()), folder, set()).text == "Yes."


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ("503 The request waited for 1 s without being admitted; try again later.", Unavailable),
        ("502 engine gone", Unavailable),
        ("504 status code (no body)", Unavailable),
        ("429 rate limit", Unavailable),
        ("Connection error.", Unavailable),
        ("terminated", Unavailable),
        ("400 This model's maximum context length is 20000 tokens.", TaskFailed),
        ("500 boom", TaskFailed),
        ("404 The model `x` does not exist here", TaskFailed),
        ("5031 is no status", TaskFailed),
        ("", TaskFailed),
        ("401 Incorrect or missing API key.", FeederError),
        ("403 forbidden", FeederError),
    ],
)
def test_an_error_is_told_by_its_status(tmp_path: Path, error: str, kind: type[Exception]) -> None:
    """What the CLI shows with it, here the answer of the turn before, is not looked at."""
    folder = sessions(tmp_path, record("old", "Yes."), record("new", "", "error", error))
    with pytest.raises(kind) as raised:
        read_turn(Finished(0, "", printed("Yes.")), folder, {"old"})
    assert type(raised.value) is kind
    assert error in str(raised.value)


@pytest.mark.parametrize(
    ("finished", "text", "complaint"),
    [
        (Finished(None, "", printed()), "Yes.", "did not end by its deadline"),
        (Finished(1, "", "blocked model (context window too small)"), "Yes.", "code 1 and no result: blocked model"),
        (Finished(137, "", ""), "Yes.", "code 137 and no result: nothing on stderr"),
        (Finished(0, "", printed("Request timed out", aborted=True, stopReason=None)), "Yes.", "gave up on the turn"),
        (Finished(0, "", printed(None)), "Yes.", "shows no answer"),
        (Finished(0, "", printed(stopReason=None)), "Yes.", "shows no answer"),
        (Finished(0, "", printed()), " \n", "shows no answer"),
    ],
)
def test_success_needs_a_stop_reason_and_a_text(tmp_path: Path, finished: Finished, text: str, complaint: str) -> None:
    with pytest.raises(TaskFailed, match=complaint):
        read_turn(finished, sessions(tmp_path, record("new", text)), set())


def test_a_conversation_that_has_not_begun_has_no_entries(tmp_path: Path) -> None:
    assert assistant_entries(tmp_path / "absent") == []
