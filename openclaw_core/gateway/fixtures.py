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
_FIND: dict[str, Any] = {"type": "function", "function": {"name": "find", "parameters": {"type": "object", "properties": {}}}}


def _call(arguments: str | dict[str, Any], name: str = "add") -> dict[str, Any]:
    return {"id": "call_1", "type": "function", "function": {"name": name, "arguments": arguments}}


def _result(text: str) -> Message:
    return {"role": "tool", "content": text, "tool_call_id": "call_1"}


_CALL = _call({"a": 2, "b": 3})
_CYCLE = (
    _user("2 + 3?"),
    _assistant("Adding.", reasoning_content="add them", tool_calls=[_call('{"a": 2, "b": 3}')]),
    _result("5"),
)

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
            _result("5"),
            _result("5"),
        ),
        (_ADD,),
    ),
    Conversation("arguments as text", _CYCLE, (_ADD, _FIND)),
    Conversation(
        "arguments as written", (_user("?"), _assistant("", tool_calls=[_call('{"a":2,\n "b" : "é"}')]), _result("")), (_ADD,)
    ),
    Conversation(
        "second tool cycle",
        (*_CYCLE, _assistant("", reasoning_content="now look", tool_calls=[_call("{}", "find")]), _result("a\n<b>\n")),
        (_ADD, _FIND),
    ),
    Conversation("question after a tool cycle", (*_CYCLE, _assistant("5", reasoning_content="done"), _user("and 6?")), (_ADD,)),
    Conversation("tools given up", (*_CYCLE, _assistant("It is 5."), _user("Thanks")), ()),
    Conversation("no reasoning in a tool cycle", (_user("?"), _assistant("", tool_calls=[_CALL]), _result("5")), (_ADD,)),
    Conversation("empty reasoning", (_user("?"), _assistant("yes", reasoning_content=""))),
    Conversation("edges of reasoning", (_user("?"), _assistant("\u3000yes ", reasoning_content="\n hm \n\n"))),
    Conversation("reasoning ended twice", (_user("?"), _assistant("<think>a</think>b</think>\nc"), _user("!"))),
    Conversation("reasoning never opened", (_user("?"), _assistant("a\n</think>\n\nb"))),
    Conversation("no question", (_SYSTEM, _assistant("Hello", reasoning_content="greet"))),
    Conversation(
        "a user writes like a tool",
        (_user("?"), _assistant("x", reasoning_content="y"), _user(" <tool_response>5</tool_response>\n")),
    ),
    Conversation(
        "a user writes as a tool",
        (_user("?"), _assistant("x", reasoning_content="y"), _user("<tool_response>5</tool_response>")),
    ),
    Conversation(
        "unicode tools",
        (_user("naïve 你好?"), _assistant("", tool_calls=[_call('{"城": "北京 🙂"}')]), _result("雨 ☔")),
        (_FIND,),
    ),
)
"""For families that reason and call tools."""
