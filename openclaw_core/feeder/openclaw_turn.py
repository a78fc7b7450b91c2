"""What a run of the openclaw CLI came to: an answer, or why there is none.

Its exit code is 0 whatever the gateway said, and after a context overflow it prints the answer of the turn before as if it
were new. So an answer counts only where the transcript has a new entry for it; that entry also has the error's own words.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from openclaw_core.feeder.backoff import KEY_STATUSES, PASSING_STATUSES, Unavailable
from openclaw_core.feeder.client import Answer
from openclaw_core.feeder.errors import FeederError, TaskFailed
from openclaw_core.feeder.openclaw_process import Finished
from openclaw_core.types import FinishReason

_ANSWERED = (FinishReason.STOP, FinishReason.LENGTH)
_SHOWN_CHARS = 300
_CONNECTION = ("Connection error", "terminated", "fetch failed", "socket", "ECONN")
"""How errors without a status begin, or what they hold, where the connection broke."""


@dataclass(frozen=True, slots=True)
class Entry:
    """An assistant's message in a transcript."""

    id: str
    stop_reason: str
    text: str
    error: str


def assistant_entries(sessions: Path) -> list[Entry]:
    """All answers, and failures to answer, in the transcripts of a session store, in order."""
    lines = [line for file in sorted(sessions.glob("*.jsonl")) for line in file.read_text().splitlines() if line.strip()]
    return [_entry(record) for record in map(json.loads, lines) if _is_assistant(record)]


def read_turn(finished: Finished, sessions: Path, before: Collection[str]) -> Answer:
    """The answer that a run has brought. ``before``: ids of the entries that were there already.

    Raises:
        Unavailable: the gateway could not be reached, or had no room; a later try may succeed.
        TaskFailed: any other failure; the message says which.
        FeederError: the gateway does not accept the key.
    """
    if finished.code is None:
        raise TaskFailed("the openclaw CLI did not end by its deadline and was killed")
    report = last_json(finished.stdout) or last_json(finished.stderr)
    if report is None:
        raise TaskFailed(f"the openclaw CLI ended with code {finished.code} and no result: {_tail(finished.stderr)}")
    new = [entry for entry in assistant_entries(sessions) if entry.id not in before]
    meta = report.get("meta", {})
    if meta.get("aborted"):
        raise TaskFailed("the openclaw CLI gave up on the turn: no answer within feeder.cli.timeout_s")
    if not new:
        raise TaskFailed(f"the openclaw CLI has no new answer in its transcript: {_told(report)}")
    last = new[-1]
    if last.stop_reason not in _ANSWERED:
        raise _failure(last.error or f"stopped by {last.stop_reason!r}")
    if meta.get("stopReason") not in _ANSWERED or not _told(report) or not last.text.strip():
        raise TaskFailed(f"the openclaw CLI shows no answer (stopReason {meta.get('stopReason')!r}, text {last.text[:40]!r})")
    return Answer(last.text, truncated=last.stop_reason == FinishReason.LENGTH, version=None)


def last_json(text: str) -> dict[str, Any] | None:
    """The last JSON object that begins a line and is a result. Warnings may come before it."""
    decoder = json.JSONDecoder()
    for match in reversed(list(re.finditer(r"^\{", text, re.MULTILINE))):
        try:
            value, _ = decoder.raw_decode(text, match.start())
        except ValueError:
            continue
        if "payloads" in value:
            return value
    return None


def _failure(error: str) -> Exception:
    """What an error in the transcript means: it begins with the HTTP status where there was one."""
    shown = f"the gateway told the openclaw CLI: {error[:_SHOWN_CHARS]}"
    found = re.match(r"(\d{3})\b", error)
    status = int(found[1]) if found else None
    if status in KEY_STATUSES:
        return FeederError(shown)
    broken = status is None and any(words in error for words in _CONNECTION)
    return Unavailable(shown) if broken or status in PASSING_STATUSES else TaskFailed(shown)


def _told(report: dict[str, Any]) -> str:
    """What it would show a person."""
    return "\n\n".join(payload.get("text") or "" for payload in report.get("payloads") or ())[:_SHOWN_CHARS].strip()


def _is_assistant(record: dict[str, Any]) -> bool:
    return record.get("type") == "message" and record["message"].get("role") == "assistant"


def _entry(record: dict[str, Any]) -> Entry:
    message = cast(dict[str, Any], record["message"])
    return Entry(
        record["id"], message.get("stopReason") or "", "".join(_texts(message["content"])), message.get("errorMessage") or ""
    )


def _texts(content: Any) -> Iterator[str]:
    if isinstance(content, str):
        yield content
        return
    for part in content:
        if part.get("type") == "text":
            yield part["text"]


def _tail(stderr: str) -> str:
    return stderr.strip()[-_SHOWN_CHARS:] or "nothing on stderr"
