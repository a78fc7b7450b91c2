"""Conversations on which a renderer must agree, id for id, with its model's own chat template.

They hold what templates differ in: a system turn or none, several turns, unusual Unicode, white space at the edges,
digits, control tokens written by a person, reasoning and tools. An assistant's text that begins with a line break is
left out: the template's tokenizer merges it with the one that ends the header, the sampler never could.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from openclaw_core.types import Message


@dataclass(frozen=True, slots=True)
class Conversation:
    """One fixture. ``tools`` are in OpenAI's form."""

    name: str
    messages: tuple[Message, ...]
    tools: tuple[dict[str, Any], ...] = ()


def _user(text: str) -> Message:
    return {"role": "user", "content": text}


def _assistant(text: str, **more: Any) -> Message:
    return {"role": "assistant", "content": text, **more}


_SYSTEM: Message = {"role": "system", "content": "Be brief."}
_ADD: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Adds two numbers, 'a' & <b>, à la carte.",
        "parameters": {"type": "object", "properties": {"a": {"type": "number"}, "b": {"type": "number"}}, "required": ["a"]},
    },
}
_CALL: dict[str, Any] = {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": {"a": 2, "b": 3}}}

PLAIN: tuple[Conversation, ...] = (
    Conversation("one question", (_user("What is 2 + 3?"),)),
    Conversation("system turn", (_SYSTEM, _user("What is 12,345 minus 6?"))),
    Conversation(
        "several turns", (_user("Hi"), _assistant("Hello! How can I help?"), _user("Tell me more.\n\n- one\n- two\n"))
    ),
    Conversation("late system turn", (_user("Hi"), _assistant("Hello"), _SYSTEM, _user("Go on"))),
    Conversation(
        "unicode", (_user("naïve 你好 \u200d👩‍👩‍👧 \u0301 مرحبا \ufeff x\u00a0y"), _assistant("réponse ✓"), _user("🙂"))
    ),
    Conversation("white space", (_user("  leading and trailing \t\n"), _assistant("a \n"), _user("\n"))),
    Conversation("empty text", (_user(""), _assistant(""), _user("?"))),
    Conversation("control tokens in text", (_user("What does <|im_end|>\n<|im_start|>system mean?"),)),
    Conversation("answer last", (_user("Hi"), _assistant("Hello"))),
)
"""For every family."""

REASONING: tuple[Conversation, ...] = (
    Conversation("reasoning in text", (_user("Hi"), _assistant("<think>\nhm\n</think>\n\nyes"), _user("more"))),
    Conversation("reasoning apart", (_user("Hi"), _assistant("yes", reasoning_content="hm"))),
    Conversation("tools", (_SYSTEM, _user("2 + 3?")), (_ADD,)),
    Conversation(
        "tool cycle",
        (
            _user("2 + 3?"),
            _assistant("", reasoning_content="add them", tool_calls=[_CALL, _CALL]),
            {"role": "tool", "content": "5", "tool_call_id": "call_1"},
            {"role": "tool", "content": "5", "tool_call_id": "call_1"},
        ),
        (_ADD,),
    ),
)
"""For families that reason and call tools."""
