"""Bodies of chat requests, for the tests of what they may say."""

from __future__ import annotations

import json
from typing import Any

HI = [{"role": "user", "content": "Hi"}]


def body(**fields: Any) -> bytes:
    return json.dumps({"model": "m", "messages": HI, **fields}).encode()


def message(content: Any, role: str = "user", **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "system", "content": "s"}, {"role": role, "content": content, **fields}]}


TOOL = {"type": "function", "function": {"name": "add"}}
CALL = {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}


def tool(**function: Any) -> dict[str, Any]:
    return {"tools": [TOOL, {"type": "function", "function": {"name": "find", **function}}]}


def call(**fields: Any) -> dict[str, Any]:
    return message(None, "assistant", tool_calls=[CALL | fields])


def json_schema(**fields: Any) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": {"type": "object"}, **fields}}}
