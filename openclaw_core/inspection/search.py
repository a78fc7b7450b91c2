"""Text search over a turn as it is stored: what people and the policy said, not keys, ids or numbers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

NO_TEXT = {"role", "type", "id", "tool_call_id"}
"""Keys of messages and tool calls whose values nobody has said."""


def mentions(needle: str, body: str, next_text: str | None, hints: str | None) -> bool:
    """Whether a turn's messages, answer, tool calls, next state or hints hold ``needle``, whatever the case.

    ``body`` and ``hints`` are JSON as in the ledger.
    """
    turn = json.loads(body)
    fields = [turn["messages"], turn["answer"], turn["tool_calls"], next_text or "", json.loads(hints or "[]")]
    wanted = needle.casefold()
    return any(wanted in text.casefold() for text in _texts(fields))


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _texts(item)
    elif isinstance(value, dict):
        for key, item in value.items():
            if key not in NO_TEXT:
                yield from _texts(item)
