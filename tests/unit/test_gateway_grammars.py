"""Tools that are offered, answers that are bound to a grammar, and for which turns and engines that is possible."""

from __future__ import annotations

import json
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from openclaw_core.engines.protocol import Grammar
from openclaw_core.gateway.errors import ApiError
from openclaw_core.gateway.schema import ToolMode, check_allowed, grammar_of, parse_chat
from openclaw_core.types import TurnType
from tests.schema_parts import TOOL, body, json_schema, tool

SCHEMA = {"type": "object", "properties": {"b": {"$ref": "#/$defs/B"}, "a": {}}, "$defs": {"B": {"type": "number"}}}


@pytest.mark.parametrize(
    ("choice", "mode", "offered"),
    [
        (None, ToolMode.AUTO, 2),
        ("auto", ToolMode.AUTO, 2),
        ("none", ToolMode.NONE, 0),
        ("required", ToolMode.FORCED, 2),
        ({"type": "function", "function": {"name": "find"}}, ToolMode.FORCED, 2),
    ],
)
def test_tools_are_offered_unless_none_may_be_called(choice: Any, mode: ToolMode, offered: int) -> None:
    fields = tool(description=None, parameters=SCHEMA, strict=False)
    request, _ = parse_chat(body(**fields, tool_choice=choice))
    expected = (
        {"type": "function", "function": {"name": "add"}},
        {"type": "function", "function": {"name": "find", "parameters": SCHEMA}},
    )
    assert (request.tool_mode, request.offered_tools) == (mode, expected[:offered])
    assert json.dumps(request.offered_tools) == json.dumps(expected[:offered])  # the order of keys is what the model sees


def grammar(**fields: Any) -> Grammar | None:
    return grammar_of(parse_chat(body(**fields))[0])


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, None),
        ({"response_format": {"type": "text"}}, None),
        ({"tools": [TOOL], "tool_choice": "auto"}, None),
        ({"response_format": {"type": "json_object"}}, Grammar("json_schema", '{"type": "object"}')),
        (json_schema(schema={"type": "string", "const": "é"}), Grammar("json_schema", '{"type": "string", "const": "é"}')),
        ({"regex": "a+"}, Grammar("regex", "a+")),
        ({"ebnf": 'root ::= "a"'}, Grammar("ebnf", 'root ::= "a"')),
    ],
)
def test_an_answer_may_be_bound_to_a_grammar(fields: dict[str, Any], expected: Grammar | None) -> None:
    assert grammar(**fields) == expected


@pytest.mark.parametrize(
    ("choice", "parallel", "good", "bad"),
    [
        ("required", None, [["add"], ["find"], ["find", "add"]], [[], ["other"]]),
        ("required", False, [["add"], ["find"]], [[], ["find", "add"]]),
        ({"type": "function", "function": {"name": "find"}}, None, [["find"]], [[], ["add"], ["find", "find"]]),
    ],
)
def test_a_demanded_call_is_a_grammar(choice: Any, parallel: bool | None, good: list[list[str]], bad: list[list[str]]) -> None:
    fields = tool(parameters=SCHEMA) | {"tool_choice": choice, "parallel_tool_calls": parallel}
    found = grammar(**fields)
    assert found is not None
    assert found.kind == "json_schema"
    checker = Draft202012Validator(json.loads(found.text))

    def valid(names: list[str], b: Any = 1) -> bool:
        return checker.is_valid([{"name": name, "arguments": {"b": b} if name == "find" else {}} for name in names])

    assert [valid(names) for names in (*good, *bad)] == [True] * len(good) + [False] * len(bad)
    assert not valid(["find"], b="text")


def test_tools_that_define_the_same_name_differently_cannot_be_demanded_together() -> None:
    other = {
        "type": "function",
        "function": {"name": "g", "parameters": {"type": "object", "$defs": {"B": {"type": "string"}}}},
    }
    fields = tool(parameters=SCHEMA)
    with pytest.raises(ApiError, match="define 'B' differently"):
        grammar(tools=[*fields["tools"], other], tool_choice="required")


BOUND = [
    ({"response_format": {"type": "json_object"}}, "response_format"),
    (json_schema(), "response_format"),
    ({"regex": "a"}, "regex"),
    ({"ebnf": "root ::= [a]"}, "ebnf"),
    (tool() | {"tool_choice": "required"}, "tool_choice"),
    (tool() | {"tool_choice": {"type": "function", "function": {"name": "add"}}}, "tool_choice"),
]


@pytest.mark.parametrize(("fields", "field"), BOUND, ids=lambda value: str(value)[:40])
def test_grammars_are_for_side_turns_on_engines_that_have_them(fields: dict[str, Any], field: str) -> None:
    request, _ = parse_chat(body(**fields))
    check_allowed(request, TurnType.SIDE, grammars=True)
    for turn_type, grammars, says in ((TurnType.MAIN, True, "side turns"), (TurnType.SIDE, False, "no grammars")):
        with pytest.raises(ApiError, match=says) as refused:
            check_allowed(request, turn_type, grammars=grammars)
        assert (refused.value.status, refused.value.param, refused.value.code) == (400, field, "unsupported_value")


def test_several_answers_are_for_side_turns() -> None:
    request, _ = parse_chat(body(n=2))
    check_allowed(request, TurnType.SIDE, grammars=False)
    with pytest.raises(ApiError, match="one answer") as refused:
        check_allowed(request, TurnType.MAIN, grammars=True)
    assert refused.value.param == "n"


def test_everything_else_is_for_any_turn_and_engine() -> None:
    request, _ = parse_chat(
        body(**tool(), tool_choice="auto", logprobs=True, top_logprobs=5, n=1, response_format={"type": "text"})
    )
    check_allowed(request, TurnType.MAIN, grammars=False)
