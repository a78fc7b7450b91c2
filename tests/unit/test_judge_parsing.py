from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openclaw_core.judge.parsing import parse_vote
from openclaw_core.types import Question


@pytest.mark.parametrize(
    ("raw", "value"),
    [
        (r"\boxed{1}", 1),
        (r"\boxed{+1}", 1),
        (r"\boxed{-1}", -1),
        (r"\boxed{0}", 0),
        (r"\boxed{ 1 }", 1),
        ("First I thought \\boxed{1}, but then:\n\\boxed{-1}", -1),
        (r"\boxed{1} and then \boxed{7}", None),
        (r"\boxed{2}", None),
        (r"\boxed{}", None),
        (r"\boxed{one}", None),
        (r"\boxed{1", None),
        (r"boxed{1}", None),
        ("1", None),
        ("", None),
    ],
)
def test_last_boxed_value_is_the_verdict_and_anything_else_is_no_vote(raw: str, value: int | None) -> None:
    assert parse_vote(Question.REWARD, raw).value == value


@pytest.mark.parametrize(
    ("raw", "value"),
    [
        (r"<think>\boxed{1}</think>\boxed{-1}", -1),
        (r"It was good: \boxed{1}</think>\boxed{-1}", -1),
        (r"<think>\boxed{1}</think>I will not say.", None),
        (r"<think>\boxed{1} but then", None),
    ],
)
def test_what_was_only_thought_is_no_verdict(raw: str, value: int | None) -> None:
    assert parse_vote(Question.REWARD, raw).value == value


def test_hint_question_knows_no_neutral_verdict() -> None:
    assert parse_vote(Question.REWARD, r"\boxed{0}").value == 0
    assert parse_vote(Question.HINT, r"\boxed{0}").value is None


@pytest.mark.parametrize(
    ("raw", "hint"),
    [
        (r"\boxed{1}[HINT_START] Use plain sentences. [HINT_END]", "Use plain sentences."),
        ("\\boxed{1}\n[HINT_START]Two\nlines.[HINT_END]", "Two\nlines."),
        (r"I put it between [HINT_START] and [HINT_END]. \boxed{1} [HINT_START]Be brief.[HINT_END]", "Be brief."),
        (r"[HINT_START] [HINT_START]Be brief.[HINT_END] \boxed{1}", "Be brief."),
        (r"\boxed{1}[HINT_START]  [HINT_END]", None),
        (r"\boxed{1}[HINT_START]never ends", None),
        (r"\boxed{1}[HINT_END]backwards[HINT_START]", None),
        (r"\boxed{1} no hint", None),
    ],
)
def test_hint_is_the_last_whole_block(raw: str, hint: str | None) -> None:
    vote = parse_vote(Question.HINT, raw)
    assert vote.value == 1
    assert vote.hint == hint


def test_hint_without_a_positive_verdict_does_not_count() -> None:
    assert parse_vote(Question.HINT, r"\boxed{-1}[HINT_START]Use plain sentences.[HINT_END]").hint is None
    assert parse_vote(Question.HINT, "[HINT_START]Use plain sentences.[HINT_END]").hint is None
    assert parse_vote(Question.REWARD, r"\boxed{1}[HINT_START]Use plain sentences.[HINT_END]").hint is None


FRAGMENTS = st.sampled_from(
    [
        "\\boxed{",
        "}",
        "1",
        "-1",
        "0",
        "+",
        "{",
        "\\",
        "[HINT_START]",
        "[HINT_END]",
        "[HINT_",
        "]",
        "\n",
        "text",
        " ",
        "é",
        "\x00",
    ]
)


@given(question=st.sampled_from(Question), raw=st.lists(FRAGMENTS | st.text(max_size=5), max_size=30).map("".join))
def test_any_garbage_gives_a_vote_that_keeps_the_contract(question: Question, raw: str) -> None:
    vote = parse_vote(question, raw)
    assert vote.raw == raw
    assert vote.value in ({1, -1, 0, None} if question is Question.REWARD else {1, -1, None})
    if vote.hint is not None:
        assert question is Question.HINT and vote.value == 1
        assert vote.hint == vote.hint.strip() != ""
        assert "[HINT_START]" not in vote.hint and "[HINT_END]" not in vote.hint


@given(question=st.sampled_from(Question), noise=st.text(), value=st.sampled_from([1, -1]))
def test_a_verdict_at_the_end_is_read_after_any_text(question: Question, noise: str, value: int) -> None:
    assert parse_vote(question, f"{noise} \\boxed{{{value}}}").value == value
