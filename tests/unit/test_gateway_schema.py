"""What a chat request may say, and how a refusal names what is wrong."""

from __future__ import annotations

import json
from typing import Any

import pytest
from openai.types.chat import ChatCompletionMessage
from openai.types.chat.completion_create_params import CompletionCreateParamsBase, CompletionCreateParamsNonStreaming

from openclaw_core.gateway.errors import ApiError
from openclaw_core.gateway.schema import ROLES, ChatRequest, parse_chat, parse_close
from tests.schema_parts import CALL, HI, TOOL, body, call, json_schema, message, tool

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
    (message([{"type": "input_audio"}]), "messages[1].content[0]", "unsupported_content", "'input_audio'"),
    (message([{"type": "file"}]), "messages[1].content[0]", "unsupported_content", "'file'"),
    (message([{"type": "text"}]), "messages[1].content[0]", "unsupported_content", "'text'"),
    (message([{"type": "text", "text": "a", "x": 1}]), "messages[1].content[0].x", "unknown_parameter", "content[0].x"),
    (message(None, "assistant"), "messages[1].content", "invalid_type", "text or a list of text parts"),
    (message(None, "assistant", tool_calls=[]), "messages[1].content", "invalid_type", "text or a list of text parts"),
    (message("x", tool_calls=[CALL]), "messages[1].tool_calls", "invalid_value", "role 'assistant', not 'user'"),
    (message("x", "assistant", tool_call_id="c"), "messages[1].tool_call_id", "invalid_value", "role 'tool'"),
    (message("x", reasoning_content="hm"), "messages[1].reasoning_content", "invalid_value", "role 'assistant'"),
    (message(None, "assistant", tool_calls=[CALL] * 129), "messages[1].tool_calls", "invalid_value", "at most 128"),
    (call(type="custom"), "messages[1].tool_calls[0].type", "invalid_value", "'function'"),
    (call(function={"name": "add"}), "messages[1].tool_calls[0].function.arguments", "missing_required_parameter", "arguments"),
    (
        call(function={"name": "add", "arguments": {}}),
        "messages[1].tool_calls[0].function.arguments",
        "invalid_value",
        "string",
    ),
    (message("x", audio={"id": "a"}), "messages[1].audio", "unsupported_parameter", "text only"),
    (message("x", refusal="no"), "messages[1].refusal", "unsupported_parameter", "refusals"),
    (message("x", function_call={"name": "f"}), "messages[1].function_call", "unsupported_parameter", "tool_calls"),
    (message("x", colour="red"), "messages[1].colour", "unknown_parameter", "messages[1].colour"),
    ({"tools": [TOOL] * 2}, "tools[1].function.name", "invalid_value", "'add'"),
    ({"tools": [{"type": "custom", "custom": {"name": "x"}}]}, "tools[0].type", "invalid_value", "'function'"),
    ({"tools": [TOOL] * 129}, "tools", "invalid_value", "at most 128"),
    (tool(name="a b"), "tools[1].function.name", "invalid_value", "pattern"),
    (tool(name="a" * 65), "tools[1].function.name", "invalid_value", "pattern"),
    (tool(name="a\n"), "tools[1].function.name", "invalid_value", "pattern"),
    (tool(parameters=[]), "tools[1].function.parameters", "invalid_value", "object"),
    (tool(parameters={"type": "array"}), "tools[1].function.parameters", "invalid_value", "'array'"),
    (tool(strict=True), "tools[1].function.strict", "unsupported_parameter", "not held to the schema"),
    ({"tool_choice": "required"}, "tool_choice", "invalid_value", "there are no tools"),
    ({"tool_choice": "maybe"}, "tool_choice", "invalid_value", "none, auto, required"),
    (tool() | {"tool_choice": {"type": "function"}}, "tool_choice", "invalid_value", "names its function"),
    (tool() | {"tool_choice": {"type": "function", "function": {"name": "x"}}}, "tool_choice", "invalid_value", "'x'"),
    (tool() | {"tool_choice": {"type": "allowed_tools"}}, "tool_choice.type", "invalid_value", "'allowed_tools'"),
    (tool() | {"parallel_tool_calls": False}, "parallel_tool_calls", "unsupported_value", "several tools"),
    ({"n": 0}, "n", "invalid_value", "got 0"),
    ({"n": 9}, "n", "invalid_value", "got 9"),
    ({"n": True}, "n", "invalid_value", "got True"),
    ({"temperature": 2.5}, "temperature", "invalid_value", "got 2.5"),
    ({"temperature": "hot"}, "temperature", "invalid_value", "'hot'"),
    ({"top_p": 0}, "top_p", "invalid_value", "greater than 0"),
    ({"max_tokens": 0}, "max_tokens", "invalid_value", "greater than or equal to 1"),
    ({"max_tokens": 10**30}, "max_tokens", "invalid_value", "less than or equal to 2147483647"),
    ({"seed": 2**63}, "seed", "invalid_value", "less than"),
    ({"max_tokens": 8, "max_completion_tokens": 9}, "max_tokens", "invalid_value", "differ"),
    ({"stop": ["a", "b", "c", "d", "e"]}, "stop", "invalid_value", "at most 4"),
    ({"stop": ""}, "stop[0]", "invalid_value", "at least 1"),
    ({"stream_options": {"include_usage": True}}, "stream_options", "invalid_value", "stream: true"),
    ({"stream": True, "stream_options": {"usage": 1}}, "stream_options.usage", "unknown_parameter", "stream_options.usage"),
    (
        {"stream": True, "stream_options": {"include_obfuscation": True}},
        "stream_options.include_obfuscation",
        "unsupported_parameter",
        "not padded",
    ),
    ({"top_logprobs": 3}, "top_logprobs", "invalid_value", "logprobs: true"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "invalid_value", "got 21"),
    ({"logit_bias": {"5": 1}}, "logit_bias", "unsupported_parameter", "more or less likely"),
    ({"response_format": {"type": "xml"}}, "response_format.type", "invalid_value", "'xml'"),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "invalid_value", "json_schema"),
    (json_schema(schema=7), "response_format.json_schema.schema", "invalid_value", "object"),
    (
        {"response_format": {"type": "json_object"}, "regex": "a+"},
        "regex",
        "invalid_value",
        "one grammar; send only one of response_format, regex",
    ),
    ({"regex": ""}, "regex", "invalid_value", "at least 1"),
    ({"metadata": {"session_id": 7}}, "metadata.session_id", "invalid_value", "string"),
    ({"modalities": ["text", "audio"]}, "modalities[1]", "invalid_value", "'text'"),
    ({"service_tier": "flex"}, "service_tier", "invalid_value", "'flex'"),
    ({"reasoning_effort": "low"}, "reasoning_effort", "unsupported_parameter", "max_tokens"),
    ({"verbosity": "low"}, "verbosity", "unsupported_parameter", "how long"),
    ({"chat_template_kwargs": {"enable_thinking": False}}, "chat_template_kwargs", "unsupported_parameter", "trained on"),
    ({"prediction": {"type": "content", "content": "x"}}, "prediction", "unsupported_parameter", "predicted"),
    ({"functions": [{"name": "f"}]}, "functions", "unsupported_parameter", "tools"),
    ({"best_of": 2}, "best_of", "unknown_parameter", "'best_of'"),
]


@pytest.mark.parametrize(("fields", "param", "code", "says"), REFUSED, ids=lambda value: str(value)[:40])
def test_what_cannot_be_honoured_is_refused_by_name(fields: dict[str, Any], param: str | None, code: str, says: str) -> None:
    with pytest.raises(ApiError) as refused:
        parse_chat(body(**fields))
    assert (refused.value.status, refused.value.param, refused.value.code) == (400, param, code)
    assert says in refused.value.message


@pytest.mark.parametrize(
    "field", sorted(CompletionCreateParamsNonStreaming.__annotations__ | CompletionCreateParamsBase.__annotations__)
)
def test_every_field_of_the_openai_client_is_known(field: str) -> None:
    assert field in ChatRequest.model_fields
    if field not in ("model", "messages"):
        parse_chat(body(**{field: None}))


@pytest.mark.parametrize("missing", ["model", "messages"])
def test_a_missing_field_is_named(missing: str) -> None:
    fields = {"model": "m", "messages": HI}
    del fields[missing]
    with pytest.raises(ApiError, match=f"Missing required parameter: '{missing}'") as refused:
        parse_chat(json.dumps(fields).encode())
    assert (refused.value.param, refused.value.code) == (missing, "missing_required_parameter")


NESTED = b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"


@pytest.mark.parametrize(
    ("junk", "says"),
    [
        (b"", "not valid JSON: Expecting value"),
        (b"{", "not valid JSON"),
        (b"\xff\xfe", "not UTF-8: byte 0"),
        (b"\xef\xbb\xbf{}", "not valid JSON"),
        (body().decode().encode("utf-16"), "not UTF-8"),
        (b"[1, 2]", "JSON object"),
        (b"null", "JSON object"),
        (b'"' + b"x" * 9, "not valid JSON"),
        (b'{"model": "m", "model": "n"}', "'model' is there twice"),
        (b'{"metadata": {"a": "b", "a": "b"}}', "'a' is there twice"),
        (b'{"temperature": NaN}', "NaN is no JSON number"),
        (b'{"temperature": -Infinity}', "-Infinity is no JSON number"),
        (b'{"seed": ' + b"9" * 5000 + b"}", "too many digits"),
        (b'{"user": "\\ud800"}', "\\ud800, half of a surrogate pair"),
        (b'{"\\udc00": 1}', "\\udc00, half of a surrogate pair"),
        (b'{"user": "a\x00"}', "not valid JSON"),
        (json.dumps(dict.fromkeys(map(str, range(1025)))).encode(), "more than 1024 keys"),
        (NESTED, "nested more than 64 levels"),
        (b'{"a": ' * 65 + b"1" + b"}" * 65, "nested more than 64 levels"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_body_that_is_not_quite_json_is_refused(junk: bytes, says: str) -> None:
    with pytest.raises(ApiError) as refused:
        parse_chat(junk)
    assert (refused.value.status, refused.value.code) == (400, "invalid_json")
    assert says in refused.value.message
    json.dumps(refused.value.body(), ensure_ascii=False).encode()


def test_whole_surrogate_pairs_are_characters() -> None:
    assert parse_chat(b'{"model": "m", "messages": [{"role": "user", "content": "\\ud83d\\ude42"}]}')[1][0]["content"] == "🙂"


def test_more_messages_than_allowed_are_refused_in_openais_words() -> None:
    assert len(parse_chat(body(messages=HI * 3), max_messages=3)[1]) == 3
    with pytest.raises(ApiError, match="maximum length 3, but got an array with length 4 instead") as refused:
        parse_chat(body(messages=HI * 4), max_messages=3)
    assert (refused.value.param, refused.value.code) == ("messages", "array_above_max_length")


def test_a_long_wrong_value_is_not_repeated() -> None:
    with pytest.raises(ApiError) as refused:
        parse_chat(body(user=["secret " * 20]))
    assert "secret" not in refused.value.message


@pytest.mark.parametrize(
    "fields",
    [
        {"stream": True, "stream_options": {"include_usage": True}, "store": False, "max_completion_tokens": 512, "tools": []},
        {"stream": True, "stream_options": {"include_usage": None, "include_obfuscation": False}, "store": True},
        {"temperature": 0, "top_p": 1, "seed": -3, "stop": "END", "user": "u", "metadata": {"session_id": "s"}, "n": 1},
        {"response_format": {"type": "text"}, "logprobs": False, "logit_bias": {}, "modalities": ["text"]},
        {"logprobs": True, "top_logprobs": 20, "service_tier": "auto", "safety_identifier": "i", "prompt_cache_key": "k"},
        {"tool_choice": "auto", "parallel_tool_calls": False, "prompt_cache_retention": "24h", "functions": []},
        {"tools": [TOOL], "tool_choice": "auto", "parallel_tool_calls": True, "n": 8, "regex": "a+"},
        json_schema(strict=True, description=None),
        dict.fromkeys(name for name in ChatRequest.model_fields if name not in ("model", "messages")),
    ],
    ids=lambda fields: ",".join(fields)[:40],
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


def test_calls_and_their_results_come_in_plain_form() -> None:
    _, messages = parse_chat(
        body(
            messages=[
                *HI,
                {"role": "assistant", "content": None, "tool_calls": [CALL | {"index": 0}], "reasoning_content": None},
                {"role": "tool", "content": [{"type": "text", "text": "5"}], "tool_call_id": "call_1", "name": "add"},
                {"role": "assistant", "content": None, "reasoning_content": "hm"},
                {"role": "assistant", "content": "5", "tool_calls": []},
            ]
        )
    )
    assert messages[1:] == (
        {"role": "assistant", "content": "", "tool_calls": [CALL]},
        {"role": "tool", "content": "5", "tool_call_id": "call_1"},
        {"role": "assistant", "content": "", "reasoning_content": "hm"},
        {"role": "assistant", "content": "5"},
    )


@pytest.mark.parametrize("arguments", ["", "{", "[1]", '{"a":1}', '{ "é" : 1 }'])
def test_arguments_of_earlier_calls_are_kept_as_they_are(arguments: str) -> None:
    function = {"name": "add", "arguments": arguments}
    _, messages = parse_chat(
        body(messages=[*HI, {"role": "assistant", "content": "", "tool_calls": [CALL | {"function": function}]}])
    )
    assert messages[1]["tool_calls"][0]["function"] == function


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
