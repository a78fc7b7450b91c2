"""What a client sees of an answer while it is sampled adds up to what is parsed of the whole, however it comes in pieces."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from openclaw_core.engines.protocol import Tokens
from openclaw_core.gateway.families import ChatMLRenderer, Qwen3FamilyRenderer
from openclaw_core.gateway.parsing import Answer
from openclaw_core.gateway.rendering import ChatRenderer
from openclaw_core.gateway.streaming import AnswerStream, Delta
from openclaw_core.types import FinishReason
from tests.models import tiny_tokenizer

PROMPT = [{"role": "user", "content": "Hi"}]


def thinking() -> ChatRenderer:
    """Qwen3's sections on the tiny vocabulary."""
    tokenizer = tiny_tokenizer()
    tokenizer.unk_token = None  # as in Qwen3's own
    tokenizer.add_tokens(["<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"])
    return ChatRenderer(tokenizer, Qwen3FamilyRenderer(cast(Any, tokenizer)))


@pytest.fixture(scope="module")
def qwen3() -> ChatRenderer:
    return thinking()


@pytest.fixture(scope="module", params=["chatml", "qwen3"])
def renderer(request: pytest.FixtureRequest) -> ChatRenderer:
    tokenizer = tiny_tokenizer()
    return ChatRenderer(tokenizer, ChatMLRenderer(tokenizer, None)) if request.param == "chatml" else thinking()


def follow(
    renderer: ChatRenderer, ids: Sequence[int], *, stop: Sequence[str] = (), cuts: Sequence[int] = (), prompt: Any = None
) -> tuple[Answer, list[Delta], AnswerStream]:
    """Feed ``ids``, cut into pieces at ``cuts``, or one by one."""
    stream = AnswerStream(renderer, prompt or renderer.render(PROMPT).prompt_ids, stop)
    edges = sorted({0, len(ids), *(cut % (len(ids) + 1) for cut in cuts)}) if cuts else list(range(len(ids) + 1))
    deltas: list[Delta] = []
    for begin, end in pairwise(edges):
        last = FinishReason.STOP if ids[end - 1] in renderer.stop_token_ids else FinishReason.LENGTH
        piece = Tokens(tuple(ids[begin:end]), (-1.0,) * (end - begin), 0, last if end == len(ids) else None)
        if delta := stream.feed(piece):
            deltas.append(delta)
        if stream.sampled.finish_reason:
            break
    answer, rest = stream.finish()
    return answer, [*deltas, rest], stream


def shown(deltas: Sequence[Delta]) -> tuple[str, str]:
    return "".join(delta.content for delta in deltas), "".join(delta.reasoning for delta in deltas)


def encode(renderer: ChatRenderer, text: str) -> list[int]:
    return renderer.tokenizer.encode(text, add_special_tokens=False)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_pieces_add_up_to_the_parsed_answer(renderer: ChatRenderer, data: st.DataObject) -> None:
    """Any ids at all: half characters, control tokens, sections that are opened twice or never closed."""
    vocabulary = len(renderer.tokenizer)
    special = [token for token in renderer.tokenizer.added_tokens_decoder if token not in renderer.stop_token_ids]
    token = st.one_of(st.integers(0, vocabulary - 1), st.sampled_from(special))
    ids = data.draw(st.lists(token.filter(lambda t: t not in renderer.stop_token_ids), min_size=1, max_size=40))
    cuts = data.draw(st.lists(st.integers(0, 100), max_size=6))
    prompt = renderer.render(PROMPT).prompt_ids
    with capture_logs() as log:
        answer, deltas, stream = follow(renderer, ids, cuts=cuts)
    assert not log
    assert shown(deltas) == (answer.text, answer.reasoning or "")
    whole = renderer.parse(ids, prompt)
    assert (answer.text, answer.reasoning) == (whole.text, whole.reasoning)
    assert [token.token_id for delta in deltas for token in delta.tokens] == ids == list(stream.sampled.token_ids)


@pytest.mark.parametrize("text", ["naïve 你好 👩‍👩‍👧 done", " edges \n", "a\n\n\nb", "x" * 50])
def test_text_comes_as_soon_as_it_is_certain(renderer: ChatRenderer, text: str) -> None:
    ids = encode(renderer, text)
    answer, deltas, _ = follow(renderer, ids)
    assert shown(deltas)[0] == answer.text == (text.strip() if renderer.sections.strip else text)
    assert len([delta for delta in deltas if delta.content]) > 1
    assert not any("\ufffd" in delta.content for delta in deltas)


def test_the_last_half_of_a_character_is_shown_as_such_at_the_end(renderer: ChatRenderer) -> None:
    ids = encode(renderer, "ok 你")[:-1]
    answer, deltas, _ = follow(renderer, ids)
    assert shown(deltas)[0] == answer.text
    assert answer.text.startswith("ok \ufffd")


@pytest.mark.parametrize("cuts", [(), (100,)], ids=["one by one", "all at once"])
@pytest.mark.parametrize(
    ("text", "stop", "expected"),
    [
        ("one two three", ["two"], "one "),
        ("one two three", ["three", "two th"], "one "),
        ("one two", ["two three"], "one two"),
        ("aab", ["ab"], "a"),
        ("ends here", ["here"], "ends "),
        ("never", ["xyz"], "never"),
    ],
)
def test_a_stop_string_ends_the_answer_and_is_not_shown(
    renderer: ChatRenderer, text: str, stop: list[str], expected: str, cuts: tuple[int, ...]
) -> None:
    ids = encode(renderer, text)
    answer, deltas, stream = follow(renderer, ids, stop=stop, cuts=cuts)
    assert shown(deltas)[0] == answer.text == expected
    kept = stream.sampled.token_ids
    assert list(kept) == ids[: len(kept)]
    if expected != text:
        assert stream.sampled.finish_reason is FinishReason.STOP
        # The token that completes the stop string is kept: without it there is none.
        assert any(s in renderer.decode(kept) for s in stop)
        assert not any(s in renderer.decode(kept[:-1]) for s in stop)


def test_what_may_become_a_stop_string_is_held_back(renderer: ChatRenderer) -> None:
    stream = AnswerStream(renderer, renderer.render(PROMPT).prompt_ids, ["STOP"])
    seen = ""
    for token in encode(renderer, "xSTOxSTOP"):
        delta = stream.feed(Tokens((token,), (-1.0,), 0))
        seen += delta.content if delta else ""
        assert "xSTOx".startswith(seen)
    assert seen == "xSTOx"


def test_reasoning_and_text_are_told_apart(qwen3: ChatRenderer) -> None:
    ids = encode(qwen3, "<think>\nhm, 2 and 3\n</think>\n\nFive.  \n")
    answer, deltas, _ = follow(qwen3, ids)
    assert shown(deltas) == ("Five.", "hm, 2 and 3") == (answer.text, answer.reasoning)


def test_a_tool_call_is_not_text_and_what_is_no_call_is(qwen3: ChatRenderer) -> None:
    call = '<tool_call>\n{"name": "add", "arguments": {"a": 2}}\n</tool_call>'
    answer, deltas, stream = follow(qwen3, encode(qwen3, f"Let me see.\n{call}"))
    assert shown(deltas)[0] == answer.text == "Let me see."
    assert [call.name for call in answer.tool_calls] == ["add"]
    assert stream.sampled.finish_reason is FinishReason.TOOL_CALLS
    answer, deltas, stream = follow(qwen3, encode(qwen3, "Let me see.\n<tool_call>\nnonsense\n</tool_call>"))
    assert answer.tool_calls == ()
    assert shown(deltas)[0] == answer.text
    assert "nonsense" in answer.text
    assert stream.sampled.finish_reason is FinishReason.LENGTH


def test_versions_are_kept_by_token(renderer: ChatRenderer) -> None:
    stream = AnswerStream(renderer, renderer.render(PROMPT).prompt_ids, ())
    ids = encode(renderer, "one two three four")
    for index, token in enumerate(ids):
        stream.feed(Tokens((token,), (-1.0,), 3 if index < 2 else 5))
    assert stream.sampled.version_spans == ((3, 2), (5, len(ids) - 2))
