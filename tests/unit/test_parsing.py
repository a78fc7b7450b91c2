"""Sampled ids → reasoning, text and tool calls; whatever is no whole call stays text."""

from __future__ import annotations

import json
import re
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openclaw_core.gateway.families import Qwen3FamilyRenderer, Qwen3ThinkingRenderer
from openclaw_core.gateway.rendering import Answer, ChatRenderer, ToolMode
from tests.qwen3_form import tiny_qwen3_tokenizer

CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 2,  "b":3}}\n</tool_call>'
ASK = [{"role": "user", "content": "2 + 3?"}]


@cache
def renderer(*, thinking: bool = False) -> ChatRenderer:
    tokenizer = tiny_qwen3_tokenizer(thinking=thinking)
    return ChatRenderer(tokenizer, (Qwen3ThinkingRenderer if thinking else Qwen3FamilyRenderer)(tokenizer))


def parsed(text: str, *, thinking: bool = False, tools: ToolMode = ToolMode.AUTO) -> Answer:
    used = renderer(thinking=thinking)
    ids = used.tokenizer.encode(text, add_special_tokens=False)
    return used.parse(ids, used.render(ASK).prompt_ids, tools)


def calls(answer: Answer) -> list[tuple[str, str]]:
    return [(call.name, call.arguments) for call in answer.tool_calls]


@pytest.mark.parametrize(
    ("sampled", "text", "reasoning"),
    [
        ("Five.<|im_end|>", "Five.", None),
        (" \n Five. \n", "Five.", None),
        ("<think>\nhm\n</think>\n\nFive.<|im_end|>", "Five.", "hm"),
        ("\n <think>hm</think>Five.", "Five.", "hm"),
        ("<think>\n\n</think>\n\nFive.", "Five.", None),
        ("<think>\nhm", "", "hm"),
        ("a <think>hm</think> b", "a <think>hm</think> b", None),
        ("<think>a</think>b</think>c", "b</think>c", "a"),
        ("hm\n</think>\n\nFive.", "hm\n</think>\n\nFive.", None),
        ("Five.<|im_end|>six<|endoftext|>", "Five.", None),
        ("Five.<|endoftext|>six", "Five.", None),
        ("a<|im_start|>b", "ab", None),
        ("", "", None),
    ],
)
def test_reasoning_is_what_comes_first_between_its_tokens(sampled: str, text: str, reasoning: str | None) -> None:
    assert parsed(sampled) == Answer(text, reasoning)


@pytest.mark.parametrize(
    ("sampled", "text", "reasoning"),
    [
        ("hm\n</think>\n\nFive.<|im_end|>", "Five.", "hm"),
        ("<think>\nhm\n</think>\n\nFive.", "Five.", "hm"),
        ("still thinking", "", "still thinking"),
        ("</think>Five.", "Five.", None),
    ],
)
def test_a_prompt_may_have_opened_the_reasoning(sampled: str, text: str, reasoning: str | None) -> None:
    assert parsed(sampled, thinking=True) == Answer(text, reasoning)


def test_reasoning_that_is_not_ended_is_ended_by_a_call() -> None:
    answer = parsed(f"hm {CALL}<|im_end|>", thinking=True)
    assert (answer.text, answer.reasoning, len(answer.tool_calls)) == ("", "hm", 1)


def test_a_call_drafted_in_reasoning_is_no_call() -> None:
    answer = parsed(f"perhaps {CALL} no</think>Five.", thinking=True)
    assert (answer.text, answer.tool_calls) == ("Five.", ())
    assert CALL in (answer.reasoning or "")


def test_calls_keep_their_order_and_their_arguments_as_written() -> None:
    answer = parsed(f'Let me see.\n{CALL}\n<tool_call>{{"arguments": {{"x": "é"}}, "name": "f"}}</tool_call>\n<|im_end|>')
    assert answer.text == "Let me see."
    assert calls(answer) == [("add", '{"a": 2,  "b":3}'), ("f", '{"x": "é"}')]
    assert len({call.id for call in answer.tool_calls}) == 2
    assert all(re.fullmatch(r"call_[0-9a-f]{24}", call.id) for call in answer.tool_calls)


def test_parsing_again_gives_the_same_ids_and_another_prompt_others() -> None:
    used = renderer()
    ids = used.tokenizer.encode(CALL, add_special_tokens=False)
    assert used.parse(ids, [1, 2]) == used.parse(ids, [1, 2])
    assert used.parse(ids, [1, 2]).tool_calls[0].id != used.parse(ids, [1, 3]).tool_calls[0].id


@pytest.mark.parametrize(
    ("body", "arguments"),
    [
        ('{"name": "f"}', "{}"),
        ('{"name": "f", "arguments": "{\\"a\\": 1}"}', '{"a": 1}'),
        ('{"name": "f", "arguments": {"arguments": {"a": 1}}}', '{"arguments": {"a": 1}}'),
        ('{"arguments": {"a": "雨"}, "name": "f"}', '{"a": "雨"}'),
        ('{"name": "f", "arguments": {"a": 1e999}}', '{"a": 1e999}'),
        ('{"name": "f", "arguments": {"a": "\\ud800"}}', '{"a": "\\ud800"}'),
        ('{"arguments": {"a": "\\ud800"}, "name": "f"}', '{"a": "\\ud800"}'),
    ],
)
def test_arguments_are_a_json_object_as_text(body: str, arguments: str) -> None:
    answer = parsed(f"<tool_call>\n{body}\n</tool_call>")
    assert calls(answer) == [("f", arguments)]
    assert isinstance(json.loads(answer.tool_calls[0].arguments.encode()), dict)


@pytest.mark.parametrize(
    "body",
    [
        "",
        "{",
        "[]",
        "null",
        "7",
        '{"arguments": {}}',
        '{"name": "f", "arguments": [1]}',
        '{"name": "f", "arguments": null}',
        '{"name": "f", "arguments": "[1]"}',
        '{"name": "f", "arguments": "x"}',
        '{"name": "f", "arguments": "{\\"a\\": \\"\\ud800\\"}"}',
        '{"name": "f g", "arguments": {}}',
        '{"name": "", "arguments": {}}',
        '{"name": 7, "arguments": {}}',
        '{"name": "f", "arguments": {"a": NaN}}',
        '{"arguments": {"a": 1e999}, "name": "f"}',
        '{"name": "f", "arguments": {}, "id": 1}',
        '{"name": "f", "arguments": {"a": ' + "9" * 5000 + "}}",
        '{"name": "f", "arguments": ' + '{"a":' * 3000 + "1" + "}" * 3001,
    ],
    ids=lambda body: body[:40],
)
def test_what_is_no_call_stays_text(body: str) -> None:
    answer = parsed(f"a <tool_call>{body}</tool_call> b{CALL}")
    assert answer.text == f"a <tool_call>{body}</tool_call> b"
    assert [name for name, _ in calls(answer)] == ["add"]


def test_a_call_that_is_cut_off_stays_text() -> None:
    assert parsed(CALL.removesuffix("</tool_call>")) == Answer(CALL.removesuffix("\n</tool_call>"))


def test_without_tools_a_call_is_text() -> None:
    assert parsed(f"a {CALL}", tools=ToolMode.NONE) == Answer(f"a {CALL}")
    assert parsed(f"hm {CALL}", thinking=True, tools=ToolMode.NONE) == Answer("", f"hm {CALL}")


def test_markers_spelt_in_other_tokens_are_text() -> None:
    used = renderer()
    ids = [token for char in f"<think>x</think>{CALL}" for token in used.tokenizer.encode(char, add_special_tokens=False)]
    assert used.parse(ids, ()) == Answer(f"<think>x</think>{CALL}")


@pytest.mark.parametrize(
    ("sampled", "found", "text"),
    [
        ('[{"name": "f", "arguments": {"a": 1}}, {"name": "g", "arguments": {}}]', [("f", '{"a": 1}'), ("g", "{}")], ""),
        ('<think>hm</think>\n[{"name": "f", "arguments": {}}]<|im_end|>', [("f", "{}")], ""),
        ('[{"name": "f", "argu', [], '[{"name": "f", "argu'),
        ("[]", [], "[]"),
        ('[{"name": "f"}, 7]', [], '[{"name": "f"}, 7]'),
    ],
)
def test_a_forced_answer_is_an_array_of_calls(sampled: str, found: list[tuple[str, str]], text: str) -> None:
    answer = parsed(sampled, tools=ToolMode.FORCED)
    assert (calls(answer), answer.text) == (found, text)
    assert len({call.id for call in answer.tool_calls}) == len(found)


def test_an_answer_is_a_message_again() -> None:
    answer = parsed(f"<think>hm</think>Adding.{CALL}")
    (call,) = answer.tool_calls
    assert answer.message == {
        "role": "assistant",
        "content": "Adding.",
        "reasoning_content": "hm",
        "tool_calls": [{"id": call.id, "type": "function", "function": {"name": "add", "arguments": '{"a": 2,  "b":3}'}}],
    }
    assert Answer("x").message == {"role": "assistant", "content": "x"}


@settings(max_examples=500)
@given(ids=st.lists(st.integers(0, 605), max_size=40), thinking=st.booleans(), tools=st.sampled_from(ToolMode))
def test_any_ids_can_be_parsed_and_sent(ids: list[int], thinking: bool, tools: ToolMode) -> None:
    used = renderer(thinking=thinking)
    answer = used.parse(ids, used.render(ASK).prompt_ids, tools)
    json.dumps(answer.message, ensure_ascii=False).encode()
    assert answer.reasoning != ""
