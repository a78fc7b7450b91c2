"""What a chat request may say, and how a refusal names what is wrong."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.types.chat import ChatCompletionMessage

from openclaw_core.gateway.errors import ApiError
from openclaw_core.gateway.schema import ROLES, parse_chat, parse_close

HI = [{"role": "user", "content": "Hi"}]


def body(**fields: Any) -> bytes:
    return json.dumps({"model": "m", "messages": HI, **fields}).encode()


def message(content: Any, role: str = "user", **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "system", "content": "s"}, {"role": role, "content": content, **fields}]}


TOOL = {"type": "function", "function": {"name": "add"}}

REFUSED: list[tuple[dict[str, Any], str | None, str, str]] = [
    ({"messages": []}, "messages", "invalid_value", "at least 1"),
    ({"messages": "Hi"}, "messages", "invalid_value", "valid array"),
    ({"messages": [HI]}, "messages[0]", "invalid_value", ""),
    (message("x", role="wizard"), "messages[1].role", "invalid_value", "'wizard'. Allowed are " + ", ".join(ROLES)),
    (message(None), "messages[1].content", "invalid_type", "text or a list of text parts"),
    (message([]), "messages[1].content", "invalid_type", "text or a list of text parts"),
    (message(7), "messages[1].content", "invalid_type", "text or a list of text parts"),
    (
        message([{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "data:"}}]),
        "messages[1].content[1]",
        "unsupported_content",
        "'image_url'",
    ),
    (message(["a"]), "messages[1].content[0]", "unsupported_content", "'str'"),
    (message("x", tool_calls=[TOOL]), "messages[1].tool_calls", "invalid_value", "at most 0"),
    (message("x", audio={"id": "a"}), "messages[1].audio", "invalid_value", ""),
    (message("x", colour="red"), "messages[1].colour", "unknown_parameter", "messages[1].colour"),
    ({"tools": [TOOL]}, "tools", "invalid_value", "at most 0"),
    ({"tool_choice": "required"}, "tool_choice", "invalid_value", "'required'"),
    ({"n": 2}, "n", "invalid_value", "got 2"),
    ({"temperature": 2.5}, "temperature", "invalid_value", "got 2.5"),
    ({"temperature": "hot"}, "temperature", "invalid_value", "'hot'"),
    ({"top_p": 0}, "top_p", "invalid_value", "greater than 0"),
    ({"max_tokens": 0}, "max_tokens", "invalid_value", "greater than or equal to 1"),
    ({"max_tokens": 8, "max_completion_tokens": 9}, "max_tokens", "invalid_value", "differ"),
    ({"stop": ["a", "b", "c", "d", "e"]}, "stop", "invalid_value", "at most 4"),
    ({"stop": ""}, "stop[0]", "invalid_value", "at least 1"),
    ({"stream_options": {"include_usage": True}}, "stream_options", "invalid_value", "stream: true"),
    ({"stream": True, "stream_options": {"usage": 1}}, "stream_options.usage", "unknown_parameter", "stream_options.usage"),
    ({"logprobs": True}, "logprobs", "invalid_value", "got True"),
    ({"logit_bias": {"5": 1}}, "logit_bias", "invalid_value", ""),
    ({"response_format": {"type": "json_object"}}, "response_format.type", "invalid_value", "'json_object'"),
    ({"metadata": {"session_id": 7}}, "metadata.session_id", "invalid_value", "string"),
    ({"reasoning_effort": "low"}, "reasoning_effort", "unknown_parameter", "'reasoning_effort'"),
]


@pytest.mark.parametrize(("fields", "param", "code", "says"), REFUSED, ids=lambda value: str(value)[:40])
def test_what_cannot_be_honoured_is_refused_by_name(fields: dict[str, Any], param: str | None, code: str, says: str) -> None:
    with pytest.raises(ApiError) as refused:
        parse_chat(body(**fields))
    assert (refused.value.status, refused.value.param, refused.value.code) == (400, param, code)
    assert says in refused.value.message


@pytest.mark.parametrize("missing", ["model", "messages"])
def test_a_missing_field_is_named(missing: str) -> None:
    fields = {"model": "m", "messages": HI}
    del fields[missing]
    with pytest.raises(ApiError, match=f"Missing required parameter: '{missing}'") as refused:
        parse_chat(json.dumps(fields).encode())
    assert (refused.value.param, refused.value.code) == (missing, "missing_required_parameter")


@pytest.mark.parametrize("junk", [b"", b"{", b"\xff\xfe", b"[1, 2]", b"null"])
def test_a_body_that_is_no_json_object_is_refused(junk: bytes) -> None:
    with pytest.raises(ApiError) as refused:
        parse_chat(junk)
    assert refused.value.status == 400


def test_a_long_wrong_value_is_not_repeated() -> None:
    with pytest.raises(ApiError) as refused:
        parse_chat(body(user=["secret " * 20]))
    assert "secret" not in refused.value.message


@pytest.mark.parametrize(
    "fields",
    [
        {"stream": True, "stream_options": {"include_usage": True}, "store": False, "max_completion_tokens": 512, "tools": []},
        {"temperature": 0, "top_p": 1, "seed": -3, "stop": "END", "user": "u", "metadata": {"session_id": "s"}, "n": 1},
        {
            "response_format": {"type": "text"},
            "logprobs": False,
            "logit_bias": {},
            "modalities": ["text"],
            "tool_choice": "auto",
        },
        dict.fromkeys(("stream", "stop", "seed", "n", "tools", "temperature", "max_tokens", "metadata", "user")),
    ],
)
def test_what_asks_for_nothing_special_is_accepted(fields: dict[str, Any]) -> None:
    request, messages = parse_chat(body(**fields))
    assert (request.model, messages) == ("m", ({"role": "user", "content": "Hi"},))


def test_messages_come_in_plain_form() -> None:
    answer = ChatCompletionMessage(role="assistant", content="Hello").model_dump() | {"reasoning_content": "hm"}
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    _, messages = parse_chat(
        body(messages=[{"role": "developer", "content": "d"}, {"role": "user", "content": parts, "name": "Ann"}, answer])
    )
    assert messages == (
        {"role": "system", "content": "d"},
        {"role": "user", "content": "one\ntwo"},
        {"role": "assistant", "content": "Hello", "reasoning_content": "hm"},
    )


@pytest.mark.parametrize(("text", "stop"), [("END", ["END"]), (["a", "b"], ["a", "b"])])
def test_stop_is_one_text_or_several(text: Any, stop: list[str]) -> None:
    assert parse_chat(body(stop=text))[0].stop == stop


@pytest.mark.parametrize("nothing", [b"", b"{}", b'{"message": null}'])
def test_a_session_may_be_closed_without_a_word(nothing: bytes) -> None:
    assert parse_close(nothing) is None


def test_a_last_word_is_the_users() -> None:
    assert parse_close(json.dumps({"message": HI[0]}).encode()) == HI[0]
    with pytest.raises(ApiError, match="'assistant'") as refused:
        parse_close(json.dumps({"message": {"role": "assistant", "content": "x"}}).encode())
    assert refused.value.param == "message.role"


Json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
FIELDS = ["model", "stream", "stop", "n", "tools", "temperature", "max_tokens", "metadata", "seed", "stream_options", "extra"]
PART = st.dictionaries(st.sampled_from(["role", "content", "name", "tool_calls", "x"]), Json | st.sampled_from(ROLES))


@settings(max_examples=500, deadline=None)
@given(fields=st.dictionaries(st.sampled_from(FIELDS), Json), messages=st.lists(PART, max_size=3) | Json)
def test_any_json_is_either_understood_or_refused(fields: dict[str, Any], messages: Any) -> None:
    try:
        request, plain = parse_chat(body(**fields, messages=messages))
    except ApiError as refused:
        assert refused.status == 400
        assert refused.message
    else:
        assert len(plain) == len(request.messages) > 0
