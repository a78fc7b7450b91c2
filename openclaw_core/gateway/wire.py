"""The bytes of an answer: OpenAI's JSON object, or its server-sent events."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from openclaw_core.gateway.rendering import Answer
from openclaw_core.types import FinishReason

_WORDS = re.compile(r"\s*\S+|\s+$")


@dataclass(frozen=True, slots=True)
class Completion:
    """A finished answer, as much of it as the client sees. ``created``: Unix time, seconds."""

    completion_id: str
    model: str
    created: int
    answer: Answer
    finish_reason: FinishReason
    prompt_tokens: int
    completion_tokens: int

    @property
    def usage(self) -> dict[str, int]:
        """Token counts."""
        total = self.prompt_tokens + self.completion_tokens
        return {"prompt_tokens": self.prompt_tokens, "completion_tokens": self.completion_tokens, "total_tokens": total}


def completion_json(completion: Completion) -> dict[str, Any]:
    """The body of an answer that is not streamed."""
    message: dict[str, Any] = {"role": "assistant", "content": completion.answer.text, "refusal": None}
    if completion.answer.reasoning is not None:
        message["reasoning_content"] = completion.answer.reasoning
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": completion.finish_reason.value}
    return _envelope(completion, "chat.completion") | {"choices": [choice], "usage": completion.usage}


def completion_events(completion: Completion, *, include_usage: bool) -> Iterator[str]:
    """The events of a streamed answer: the role, the text word by word, the reason for ending, usage if asked, [DONE]."""
    envelope = _envelope(completion, "chat.completion.chunk") | ({"usage": None} if include_usage else {})

    def event(delta: dict[str, Any], finish_reason: str | None = None) -> str:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        return _data(envelope | {"choices": [choice]})

    yield event({"role": "assistant", "content": ""})
    for word in words(completion.answer.reasoning or ""):
        yield event({"reasoning_content": word})
    for word in words(completion.answer.text):
        yield event({"content": word})
    yield event({}, completion.finish_reason.value)
    if include_usage:
        yield _data(envelope | {"choices": [], "usage": completion.usage})
    yield "data: [DONE]\n\n"


def words(text: str) -> list[str]:
    """Word-sized pieces that make up ``text`` again, white space and all."""
    return _WORDS.findall(text)


def models_json(name: str, created: int) -> dict[str, Any]:
    """The body of GET /v1/models."""
    return {"object": "list", "data": [{"id": name, "object": "model", "created": created, "owned_by": "openclaw-rl"}]}


def _envelope(completion: Completion, kind: str) -> dict[str, Any]:
    return {"id": completion.completion_id, "object": kind, "created": completion.created, "model": completion.model}


def _data(event: dict[str, Any]) -> str:
    return f"data: {json.dumps(event, ensure_ascii=False, separators=(',', ':'))}\n\n"
