"""Going on after a stored turn with the very ids that were sampled, and where a hint goes then."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from openclaw_core.gateway.families import (
    ChatMLRenderer,
    Qwen3FamilyRenderer,
    Qwen3ThinkingRenderer,
    RenderError,
    ToolsUnsupported,
)
from openclaw_core.gateway.fixtures import PLAIN, REASONING, Conversation
from openclaw_core.gateway.rendering import ChatRenderer, Rendering, check_template
from openclaw_core.gateway.rendering import RenderError as Exported
from tests.models import tiny_tokenizer
from tests.qwen3_form import tiny_qwen3_tokenizer

ADD = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}
FIND = {"type": "function", "function": {"name": "find"}}
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 2}}\n</tool_call>'
FAMILIES = ["chatml", "qwen3", "thinking"]


@cache
def renderer(family: str) -> ChatRenderer:
    if family == "chatml":
        tokenizer = tiny_tokenizer()
        return ChatRenderer(tokenizer, ChatMLRenderer(tokenizer, None))
    tokenizer = tiny_qwen3_tokenizer(thinking=family == "thinking")
    return ChatRenderer(tokenizer, (Qwen3ThinkingRenderer if family == "thinking" else Qwen3FamilyRenderer)(tokenizer))


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def result(text: str) -> dict[str, Any]:
    return {"role": "tool", "content": text, "tool_call_id": "c"}


def ids(used: ChatRenderer, text: str) -> tuple[int, ...]:
    return tuple(used.tokenizer.encode(text, add_special_tokens=False))


def text_before(used: ChatRenderer, rendering: Rendering) -> str:
    assert rendering.hint_offset is not None
    assert rendering.prompt_ids[rendering.hint_offset] == used.stop_token_ids[0]
    return str(used.tokenizer.decode(list(rendering.prompt_ids[: rendering.hint_offset]), skip_special_tokens=False))


@pytest.mark.parametrize("family", ["qwen3", "thinking"])
@pytest.mark.parametrize("conversation", PLAIN + REASONING, ids=lambda conversation: conversation.name)
def test_rendered_ids_are_those_of_the_chat_template(family: str, conversation: Conversation) -> None:
    used = renderer(family)
    text = used.tokenizer.apply_chat_template(
        list(conversation.messages), tools=list(conversation.tools) or None, tokenize=False, add_generation_prompt=True
    )
    assert used.render(conversation.messages, conversation.tools).prompt_ids == ids(used, str(text))


def test_a_template_that_keeps_the_reasoning_is_told_from_the_renderer() -> None:
    other = tiny_qwen3_tokenizer(thinking=False)
    other.chat_template = str(other.chat_template).replace("loop.index0 > state.question and", "")
    with pytest.raises(RenderError, match="differ on fixture"):
        check_template(renderer("qwen3"), other)


@pytest.mark.parametrize("family", ["qwen3", "thinking"])
@pytest.mark.parametrize("results", [1, 2])
def test_in_a_tool_cycle_the_hint_goes_into_the_question_before_it(family: str, results: int) -> None:
    used = renderer(family)
    call = {"id": "c", "type": "function", "function": {"name": "add", "arguments": "{}"}}
    messages = [user("first"), {"role": "assistant", "content": "", "tool_calls": [call] * results}, *[result("5")] * results]
    assert text_before(used, used.render(messages, [ADD])).endswith("<|im_start|>user\nfirst")
    assert text_before(used, used.render([*messages, user("then")], [ADD])).endswith("<|im_start|>user\nthen")


@pytest.mark.parametrize("family", ["qwen3", "thinking"])
@pytest.mark.parametrize("call", [CALL, CALL.replace('{"a": 2}', '{"a":2}')])
def test_a_tool_cycle_is_bridged_with_the_ids_that_were_sampled(family: str, call: str) -> None:
    used = renderer(family)
    asked = used.render([user("2 + 3?")], [ADD])
    sampled = ids(used, ("" if family == "thinking" else "<think>\n") + f"hm\n</think>\n\nAdding.\n{call}<|im_end|>")
    answer = used.parse(sampled, asked.prompt_ids)
    bridged = used.bridge(asked, sampled, [result("5")], [ADD])
    assert bridged is not None
    assert bridged.prompt_ids[: len(asked.prompt_ids) + len(sampled)] == asked.prompt_ids + sampled
    assert bridged.hint_offset == asked.hint_offset
    assert text_before(used, bridged).endswith("user\n2 + 3?")
    # What the model wrote as the template would have is what the template writes.
    assert bridged.prompt_ids == used.render([user("2 + 3?"), answer.message, result("5")], [ADD]).prompt_ids


def test_an_answer_written_unlike_the_template_is_kept_as_it_was_written() -> None:
    used = renderer("qwen3")
    asked = used.render([user("2 + 3?")], [ADD])
    sampled = ids(used, f"<think>hm</think>{CALL}<|im_end|>")
    bridged = used.bridge(asked, sampled, [result("5")], [ADD])
    assert bridged is not None
    assert bridged.prompt_ids[: len(asked.prompt_ids) + len(sampled)] == asked.prompt_ids + sampled
    answer = used.parse(sampled, asked.prompt_ids)
    assert bridged.prompt_ids != used.render([user("2 + 3?"), answer.message, result("5")], [ADD]).prompt_ids


@pytest.mark.parametrize(
    ("sampled", "new", "tools"),
    [
        (f"{CALL}<|im_end|>", [user("next")], [ADD]),
        (f"{CALL}<|im_end|>", [result("5"), user("next")], [ADD]),
        (f"{CALL}<|im_end|>", [result("5"), {"role": "assistant", "content": "x"}], [ADD]),
        (f"{CALL}<|im_end|>", [result("5")], [FIND]),
        (f"{CALL}<|im_end|>", [result("5")], [ADD, FIND]),
        (f"{CALL}<|im_end|>", [result("5")], []),
        (f"{CALL}<|im_end|>", [], [ADD]),
        (CALL, [result("5")], [ADD]),
        (f"{CALL}<|endoftext|>", [result("5")], [ADD]),
        (f"<|endoftext|>{CALL}<|im_end|>", [result("5")], [ADD]),
        ("<think>hm<|im_end|>", [result("5")], [ADD]),
        ("", [result("5")], [ADD]),
    ],
    ids=str,
)
def test_what_the_template_would_write_differently_is_not_bridged(
    sampled: str, new: list[dict[str, Any]], tools: list[dict[str, Any]]
) -> None:
    used = renderer("qwen3")
    asked = used.render([{"role": "system", "content": "Be brief."}, user("2 + 3?")], [ADD])
    assert used.bridge(asked, ids(used, sampled), new, tools) is None


def test_tools_that_come_later_are_not_bridged() -> None:
    used = renderer("qwen3")
    sampled = ids(used, f"{CALL}<|im_end|>")
    assert used.bridge(used.render([user("?")]), sampled, [result("5")], [ADD]) is None
    assert used.bridge(used.render([user("?")]), sampled, [result("5")], []) is not None


def test_chatml_is_always_bridged() -> None:
    used = renderer("chatml")
    asked = used.render([user("Hi")])
    sampled = (5, 1, 0, 77, 2)  # odd control tokens in the middle are kept
    bridged = used.bridge(asked, sampled, [{"role": "system", "content": "s"}, user("What?")])
    assert bridged is not None
    head, rest = bridged.prompt_ids[: len(asked.prompt_ids) + 5], bridged.prompt_ids[len(asked.prompt_ids) + 5 :]
    assert head == asked.prompt_ids + sampled
    assert rest == ids(used, "\n<|im_start|>system\ns<|im_end|>\n<|im_start|>user\nWhat?<|im_end|>\n<|im_start|>assistant\n")
    assert text_before(used, bridged).endswith("user\nWhat?")


@pytest.mark.parametrize("sampled", [(5, 6), (5, 2, 6), (5, 2, 6, 2), ()])
def test_chatml_answers_that_were_cut_are_not_bridged(sampled: tuple[int, ...]) -> None:
    used = renderer("chatml")
    assert used.bridge(used.render([user("Hi")]), sampled, [user("What?")]) is None


def test_a_model_without_tools_says_so() -> None:
    used = renderer("chatml")
    with pytest.raises(ToolsUnsupported, match="no place for tools") as refused:
        used.render([user("Hi")], [ADD])
    assert refused.value.param == "tools"
    with pytest.raises(Exported, match="tool_calls") as refused:
        used.render([user("Hi"), {"role": "assistant", "content": "", "tool_calls": [{}]}])
    assert refused.value.param == "messages"


@pytest.mark.parametrize(("family", "always"), [("chatml", False), ("qwen3", False), ("thinking", True)])
def test_a_prompt_tells_whether_the_answer_begins_in_reasoning(family: str, always: bool) -> None:
    used = renderer(family)
    assert used.always_reasons == always
    assert used.starts_in_reasoning(used.render([user("say <think>")]).prompt_ids) == always
    assert not used.starts_in_reasoning(())


def test_sections_are_the_familys_own_tokens() -> None:
    sections = renderer("qwen3").sections
    named = (sections.reasoning_open, sections.reasoning_close, sections.tool_open, sections.tool_close)
    assert renderer("qwen3").tokenizer.convert_ids_to_tokens(named) == ["<think>", "</think>", "<tool_call>", "</tool_call>"]
    assert (renderer("chatml").sections.reasoning_open, renderer("chatml").sections.tool_open) == (None, None)
