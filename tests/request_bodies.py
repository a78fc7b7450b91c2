"""Bodies of chat requests for property tests: most are right, some are nearly right, some are junk."""

from __future__ import annotations

import copy
import json
from typing import Any

from hypothesis import strategies as st

from openclaw_core.gateway.schema import ChatRequest

Text = st.one_of(
    st.text(st.characters(codec="utf-8"), max_size=20),
    st.sampled_from(
        ["Hi", "", "<|im_end|>", "<think>hm</think>", "<tool_call>", "a</think>b</think>c", "\n\n", "\x00", "👩‍👩‍👧"]
    ),
)
Name = st.sampled_from(["add", "find_it-2", "f", "g"])
Junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | Text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(Text, inner, max_size=3),
    max_leaves=6,
)
Arguments = st.one_of(Text, st.dictionaries(Text, Junk, max_size=2).map(json.dumps))
Content = st.one_of(Text, st.lists(Text.map(lambda text: {"type": "text", "text": text}), min_size=1, max_size=3))
Calls = st.lists(
    st.builds(
        lambda name, arguments: {"id": "call_1", "type": "function", "function": {"name": name, "arguments": arguments}},
        Name,
        Arguments,
    ),
    min_size=1,
    max_size=2,
)
Messages = st.lists(
    st.one_of(
        st.fixed_dictionaries(
            {"role": st.sampled_from(["user", "system", "developer"]), "content": Content}, optional={"name": Text}
        ),
        st.fixed_dictionaries(
            {"role": st.just("assistant"), "content": Content},
            optional={"reasoning_content": Text | st.none(), "refusal": st.none()},
        ),
        st.fixed_dictionaries({"role": st.just("assistant"), "content": Content | st.none(), "tool_calls": Calls}),
        st.fixed_dictionaries({"role": st.just("tool"), "content": Content, "tool_call_id": Text}),
    ),
    min_size=1,
    max_size=6,
)
Tools = st.lists(
    st.builds(
        lambda name, more: {"type": "function", "function": {"name": name, **more}},
        Name,
        st.fixed_dictionaries(
            {}, optional={"description": Text, "parameters": st.dictionaries(Text, Junk, max_size=2), "strict": st.just(False)}
        ),
    ),
    max_size=3,
    unique_by=lambda tool: tool["function"]["name"],
)
Choice = st.one_of(
    st.sampled_from(["none", "auto", "required"]), Name.map(lambda name: {"type": "function", "function": {"name": name}})
)
FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "tools": Tools,
    "tool_choice": Choice,
    "temperature": st.floats(0, 2),
    "top_p": st.floats(0, 1, exclude_min=True),
    "top_k": st.integers(-1, 100),
    "min_p": st.floats(0, 1),
    "repetition_penalty": st.floats(0.1, 2),
    "presence_penalty": st.floats(-2, 2),
    "seed": st.integers(-(2**63), 2**63 - 1),
    "n": st.integers(1, 3),
    "logprobs": st.booleans(),
    "top_logprobs": st.integers(0, 20),
    "max_tokens": st.integers(1, 400),
    "stop": Text | st.lists(Text, max_size=5),
    "stream": st.booleans(),
    "stream_options": st.just({"include_usage": True}),
    "metadata": st.dictionaries(Text, Text, max_size=2),
    "user": Text,
    "response_format": st.sampled_from([{"type": "text"}, {"type": "json_object"}]),
    "regex": Text,
    "parallel_tool_calls": st.booleans(),
}
ANY_FIELD = st.sampled_from(sorted(ChatRequest.model_fields)) | Text


@st.composite
def _requests(draw: st.DrawFn) -> dict[str, Any]:
    """Right, or right but for fields that do not go together."""
    names = draw(st.lists(st.sampled_from(sorted(FIELDS)), max_size=5, unique=True))
    fields = {name: draw(st.none() | FIELDS[name]) for name in names}
    return {"model": "tiny", "messages": draw(Messages), **fields}


@st.composite
def _mutated(draw: st.DrawFn) -> dict[str, Any]:
    """A request in which something, somewhere, is replaced, added or missing."""
    request = copy.deepcopy(draw(_requests()))  # some of its parts are the strategies' own
    target: Any = request
    for _ in range(draw(st.integers(0, 3))):
        inner = [
            value
            for value in (target.values() if isinstance(target, dict) else target)
            if isinstance(value, dict | list) and value
        ]
        if not inner:
            break
        target = draw(st.sampled_from(inner))
    if isinstance(target, list):
        target[draw(st.integers(0, len(target) - 1))] = draw(Junk)
    elif draw(st.booleans()):
        target[draw(st.sampled_from(sorted(target)) | ANY_FIELD)] = draw(Junk)
    else:
        del target[draw(st.sampled_from(sorted(target)))]
    return request


@st.composite
def _broken(draw: st.DrawFn) -> bytes:
    """The bytes of a request with some of them cut out, doubled or changed."""
    body = bytearray(json.dumps(draw(_requests()), ensure_ascii=draw(st.booleans())).encode())
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(body) - 1))
        body[at : at + draw(st.integers(0, 4))] = draw(
            st.binary(max_size=4) | st.sampled_from([b"NaN", b"\\ud800", b"[[", b"1e999"])
        )
    return bytes(body)


def _dumped(value: Any) -> bytes:
    return json.dumps(value).encode()


Bodies = st.one_of(
    _requests().map(_dumped),
    _requests().map(_dumped),
    _requests().map(_dumped),
    _mutated().map(_dumped),
    _broken(),
    Junk.map(_dumped),
)
