"""Sampled ids → reasoning, text and tool calls. Sections are told by token ids, never by text that looks like a marker.

An answer may end anywhere, so any prefix of one can be parsed. What is no whole call of a function stays text.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from openclaw_core.gateway.tools import ToolCall, ToolMode

Ids = tuple[int, ...]
Decode = Callable[[Sequence[int]], str]

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_SPACE = re.compile(r"[ \t\n\r]*")


@dataclass(frozen=True, slots=True)
class Sections:
    """The tokens that a family puts around the parts of an answer; None where it has no such part.

    ``strip``: white space at the edges of a part belongs to the form, not to the text.
    """

    reasoning_open: int | None = None
    reasoning_close: int | None = None
    tool_open: int | None = None
    tool_close: int | None = None
    strip: bool = False


@dataclass(frozen=True, slots=True)
class Answer:
    """A parsed answer: ``text`` for the person, ``reasoning`` where the model thinks first, ``tool_calls`` in order."""

    text: str
    reasoning: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()

    @property
    def message(self) -> dict[str, Any]:
        """As the message of a conversation, in the plain form of ``messages.normalise``."""
        message: dict[str, Any] = {"role": "assistant", "content": self.text}
        if self.reasoning is not None:
            message["reasoning_content"] = self.reasoning
        if self.tool_calls:
            message["tool_calls"] = [
                {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
                for call in self.tool_calls
            ]
        return message


def opens_reasoning(prompt_ids: Sequence[int], sections: Sections, stop_ids: Sequence[int]) -> bool:
    """Whether a prompt ends inside a reasoning block, so that the answer begins there."""
    if sections.reasoning_open is None:
        return False
    ends = {sections.reasoning_close, *stop_ids}
    for token in reversed(prompt_ids):
        if token == sections.reasoning_open:
            return True
        if token in ends:
            return False
    return False


def parse(
    ids: Sequence[int], sections: Sections, decode: Decode, *, in_reasoning: bool, tools: ToolMode, seed: Sequence[int] = ()
) -> Answer:
    """An answer without its stop token, or the beginning of one, in its parts.

    Reasoning ends at its closing token; where there is none, at the first tool call. ``seed``: the prompt; a call's id
    depends on it and on the call's place, so that parsing twice gives the same id.
    """
    opener = sections.tool_open if tools is ToolMode.AUTO else None
    reasoning_ids, rest = _reasoning(ids, sections, decode, in_reasoning=in_reasoning, opener=opener)
    base = len(ids) - len(rest)
    text, calls = "", []
    if tools is ToolMode.FORCED:
        text, calls = _forced(decode(rest), seed, ids)
    elif opener is not None:
        at = 0
        for start, end in _blocks(rest, sections):
            text += decode(rest[at:start])
            if (call := _call(decode(rest[start + 1 : end - 1]))) is None:
                text += decode(rest[start:end])
            else:
                calls.append(ToolCall(_call_id(seed, ids[: base + end], 0), *call))
            at = end
        text += decode(rest[at:])
    else:
        text = decode(rest)
    reasoning = None if reasoning_ids is None else decode(reasoning_ids)
    if sections.strip:
        text, reasoning = text.strip(), reasoning and reasoning.strip()
    return Answer(text, reasoning or None, tuple(calls))


def _reasoning(
    ids: Sequence[int], sections: Sections, decode: Decode, *, in_reasoning: bool, opener: int | None
) -> tuple[Sequence[int] | None, Sequence[int]]:
    """The ids inside the reasoning block, None where there is none, and those after it.

    ``opener``: the token that begins a call, where calls are looked for.
    """
    begin = 0
    if (opening := _find(ids, sections.reasoning_open)) is not None and not decode(ids[:opening]).strip():
        in_reasoning, begin = True, opening + 1
    if not in_reasoning:
        return None, ids
    body = ids[begin:]
    if (closing := _find(body, sections.reasoning_close)) is not None:
        return body[:closing], body[closing + 1 :]
    call = _find(body, opener)
    end = len(body) if call is None else call
    return body[:end], body[end:]


def _find(ids: Sequence[int], token: int | None) -> int | None:
    return next((at for at, other in enumerate(ids) if other == token), None)


def _blocks(ids: Sequence[int], sections: Sections) -> list[tuple[int, int]]:
    """[start, end) of each tool section that is closed, its markers included."""
    blocks, start = [], None
    for at, token in enumerate(ids):
        if token == sections.tool_open and start is None:
            start = at
        elif token == sections.tool_close and start is not None:
            blocks.append((start, at + 1))
            start = None
    return blocks


def _call(text: str) -> tuple[str, str] | None:
    """(name, arguments) of ``{"name": …, "arguments": {…}}``; None for anything else."""
    try:
        return _named(json.loads(text, parse_constant=_not_json), text)
    except (ValueError, RecursionError):
        return None


def _forced(text: str, seed: Sequence[int], ids: Sequence[int]) -> tuple[str, list[ToolCall]]:
    """The calls of an answer that is an array of them; the text itself where it is not a whole one."""
    try:
        items = json.loads(text, parse_constant=_not_json)
        found = [_named(item, "") for item in items] if isinstance(items, list) else []
    except (ValueError, RecursionError):
        found = []
    if not found or None in found:
        return text, []
    return "", [ToolCall(_call_id(seed, ids, place), *call) for place, call in enumerate(found) if call is not None]


def _named(value: Any, source: str) -> tuple[str, str] | None:
    if not isinstance(value, dict) or not {"name"} <= value.keys() <= {"name", "arguments"}:
        return None
    name, arguments = value["name"], value.get("arguments", {})
    if not isinstance(name, str) or _NAME.fullmatch(name) is None:
        return None
    if isinstance(arguments, str):  # some models write the object as a text
        arguments.encode()  # half of a surrogate pair is no text that could be sent
        return (name, arguments) if isinstance(json.loads(arguments, parse_constant=_not_json), dict) else None
    if not isinstance(arguments, dict):
        return None
    if (written := _as_written(source)) is not None:
        return name, written
    text = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
    return name, text if text.isprintable() else json.dumps(arguments)


def _as_written(source: str) -> str | None:
    """The arguments as the model wrote them, so that its history reads as it wrote it; None where they are not last."""
    decoder = json.JSONDecoder()
    if (key := re.search(r'"arguments"[ \t\n\r]*:', source)) is None:
        return None
    start = _end_of_space(source, key.end())
    try:
        value, end = decoder.raw_decode(source, start)
    except ValueError:
        return None
    return source[start:end] if isinstance(value, dict) and source[_end_of_space(source, end) :].strip() == "}" else None


def _end_of_space(text: str, at: int) -> int:
    space = _SPACE.match(text, at)
    return at if space is None else space.end()


def _not_json(constant: str) -> Any:
    raise ValueError(f"{constant} is no JSON number")


def _call_id(seed: Sequence[int], ids: Sequence[int], place: int) -> str:
    digest = hashlib.sha256(repr((tuple(seed), tuple(ids), place)).encode())
    return f"call_{digest.hexdigest()[:24]}"
