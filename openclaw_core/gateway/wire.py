"""The bytes of an answer: OpenAI's JSON object, or its server-sent events."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from openclaw_core.gateway.logprobs import TokenTexts
from openclaw_core.gateway.rendering import Answer, ToolCall
from openclaw_core.gateway.streaming import Delta, TokenLogprob
from openclaw_core.types import FinishReason

DONE = "data: [DONE]\n\n"

_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


@dataclass(frozen=True, slots=True)
class Envelope:
    """What every object of one completion carries. ``created``: Unix time, seconds."""

    completion_id: str
    model: str
    created: int

    def of(self, kind: str) -> dict[str, Any]:
        """The fields at the top of an object of that kind."""
        return {"id": self.completion_id, "object": kind, "created": self.created, "model": self.model}


@dataclass(frozen=True, slots=True)
class FinishedChoice:
    """A finished answer, as much of it as the client sees."""

    answer: Answer
    finish_reason: FinishReason
    tokens: Sequence[TokenLogprob]


def usage_json(prompt_tokens: int, completion_tokens: int) -> dict[str, int]:
    """Token counts; of several choices, the completion's are added up."""
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
    }


def completion_json(
    envelope: Envelope, choices: Sequence[FinishedChoice], usage: dict[str, int], texts: TokenTexts | None
) -> dict[str, Any]:
    """The body of an answer that is not streamed. ``texts``: for log-probs, where they were asked for."""
    shown = [
        {
            "index": index,
            "message": _message(choice.answer),
            "logprobs": None if texts is None else texts.logprobs_json(choice.tokens),
            "finish_reason": choice.finish_reason.value,
        }
        for index, choice in enumerate(choices)
    ]
    return envelope.of("chat.completion") | {"choices": shown, "usage": usage}


class Events:
    """The events of a streamed answer: role, pieces, reason for ending, usage if asked; then DONE."""

    def __init__(self, envelope: Envelope, *, include_usage: bool, texts: TokenTexts | None) -> None:
        head = _json(envelope.of("chat.completion.chunk") | ({"usage": None} if include_usage else {}))
        self._head = f"data: {head[:-1]},"
        self._envelope, self._texts = envelope, texts

    def role(self, index: int) -> str:
        """The first event of a choice."""
        return self._event(index, {"role": "assistant", "content": ""})

    def delta(self, index: int, delta: Delta) -> str:
        """The next piece of a choice; empty where there is nothing to tell."""
        shown = {"content": delta.content, "reasoning_content": delta.reasoning}
        logprobs = self._texts.logprobs_json(delta.tokens) if self._texts and delta.tokens else None
        said = {name: text for name, text in shown.items() if text}
        return self._event(index, said, logprobs=logprobs) if said or logprobs else ""

    def end(self, index: int, choice: FinishedChoice) -> str:
        """The last events of a choice: its tool calls, and why it ended."""
        calls = [{"index": at, **tool_call_json(call)} for at, call in enumerate(choice.answer.tool_calls)]
        called = self._event(index, {"tool_calls": calls}) if calls else ""
        return called + self._event(index, {}, finish_reason=choice.finish_reason.value)

    def usage(self, usage: dict[str, int]) -> str:
        """After the last choice, where it was asked for."""
        return _data(self._envelope.of("chat.completion.chunk") | {"choices": [], "usage": usage})

    def _event(self, index: int, delta: dict[str, Any], *, logprobs: Any = None, finish_reason: str | None = None) -> str:
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason}
        return f'{self._head}"choices":[{_json(choice)}]}}\n\n'


def error_event(body: dict[str, Any]) -> str:
    """An error after the stream has begun; DONE comes after it."""
    return _data(body)


def tool_call_json(call: ToolCall) -> dict[str, Any]:
    """OpenAI's form of a call."""
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def models_json(name: str, created: int) -> dict[str, Any]:
    """The body of GET /v1/models."""
    return {"object": "list", "data": [{"id": name, "object": "model", "created": created, "owned_by": "openclaw-rl"}]}


def _message(answer: Answer) -> dict[str, Any]:
    calls = [tool_call_json(call) for call in answer.tool_calls]
    message: dict[str, Any] = {"role": "assistant", "content": answer.text, "refusal": None}
    if calls:
        message |= {"content": answer.text or None, "tool_calls": calls}
    if answer.reasoning is not None:
        message["reasoning_content"] = answer.reasoning
    return message


def _data(event: dict[str, Any]) -> str:
    return f"data: {_json(event)}\n\n"
