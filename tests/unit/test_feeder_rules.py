from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openclaw_core.feeder import load_personas
from openclaw_core.feeder.persona import RelevanceRule, StyleRule
from openclaw_core.feeder.rules import content_words, is_relevant, marks, meets_style, numbers, satisfies, word_count

STUDENT, TA, TEACHER = load_personas("local", ["student", "ta", "teacher"])
QUESTION = "A child has 7 stickers. His cousin has 12 more stickers than he has. How many stickers do they have together?"
PLAIN = "The child has 7 stickers and the cousin has 12 more, so the cousin has 19 and both have 26 stickers."
PLAIN_TEXT = st.text(st.sampled_from("abcdefghij ABC.,?!'0123456789"), max_size=200)


@pytest.mark.parametrize(
    ("answer", "kinds"),
    [
        ("The answer is **7**.", ["bold"]),
        ("__Answer__", ["bold"]),
        ("Use `x`.", ["code"]),
        ("# Solution", ["heading"]),
        ("First:\n- add", ["bullet"]),
        ("First:\n* add", ["bullet"]),
        ("First:\n\u2022 add", ["bullet"]),
        ("1. add", ["number"]),
        ("Then\n  (2) add", ["number"]),
        ("Step 1: add", ["step label"]),
        (r"\boxed{7}", ["LaTeX"]),
        (r"\[7\]", ["LaTeX"]),
        (r"so \(x\)", ["LaTeX"]),
        (r"3 \times 4", ["LaTeX"]),
        ("$$7$$", ["LaTeX"]),
        ("so $x = 7$", ["LaTeX"]),
        ("It costs $7 and $8.", []),
        ("3 - 2 is 1, and 2*3 is 6.", []),
        ("There are 7.5 apples.", []),
        ("In step 1 we add.", []),
        (PLAIN, []),
    ],
)
def test_markdown_and_latex_are_told_from_plain_text(answer: str, kinds: list[str]) -> None:
    assert marks(answer) == kinds


@given(PLAIN_TEXT, st.sampled_from(["**", "`", "\n# x", "\n- x", "\n1. x", "\nStep 2", r"\boxed{1}", "$$"]), PLAIN_TEXT)
def test_a_mark_anywhere_spoils_plain_text(before: str, mark: str, after: str) -> None:
    rule = StyleRule(no_markdown=True)
    assert not meets_style(rule, before + mark + after)


@given(st.lists(PLAIN_TEXT.filter(str.strip), min_size=2, max_size=4))
def test_one_paragraph_means_no_line_break_inside(parts: list[str]) -> None:
    rule = StyleRule(one_paragraph=True)
    assert meets_style(rule, f"\n{' '.join(parts)}\n")
    assert not meets_style(rule, "\n".join(parts))


@given(st.integers(1, 60), st.integers(1, 60))
def test_min_words_is_inclusive(words: int, least: int) -> None:
    assert meets_style(StyleRule(min_words=least), " ".join(["word"] * words)) == (words >= least)


@pytest.mark.parametrize(
    ("answer", "warm"),
    [
        ("Let's look at it.", True),
        ("LET US look at it.", True),
        ("Let\u2019s look at it.", True),
        ("We do it together!", True),
        ("Great question.", True),
        ("This is greater than that.", False),
        ("The outlets are closed.", False),
        ("Subtract 7 from 12.", False),
    ],
)
def test_warm_phrases_count_as_whole_words_in_any_case(answer: str, warm: bool) -> None:
    assert meets_style(TEACHER.style, answer) is warm


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("1,250 and 3", {"1250", "3"}),
        ("seven or Twelve", {"7", "12"}),
        ("2.5", {"2", "5"}),
        ("someone", set()),
        ("twentyone", set()),
        ("", set()),
    ],
)
def test_numbers_in_digits_and_words(text: str, found: set[str]) -> None:
    assert numbers(text) == found


def test_content_words_are_compared_by_stem_and_without_common_ones() -> None:
    assert content_words("How many stickers would they have?") == content_words("sticker") == {"stick"}


@pytest.mark.parametrize("persona", [STUDENT, TA, TEACHER], ids=lambda persona: persona.name)
@pytest.mark.parametrize(
    ("answer", "relevant"),
    [
        (PLAIN, True),
        ("7 stickers and 12 more", False),
        ("I like to write long poems about bears and rivers and nothing of it is about your homework.", False),
        ("", False),
    ],
    ids=["on topic", "too short", "off topic", "empty"],
)
def test_relevance_of_an_answer(persona, answer: str, relevant: bool) -> None:
    assert is_relevant(persona.relevance, answer, QUESTION) is relevant


def test_student_wants_two_numbers_where_the_others_take_words_too() -> None:
    answer = "You take what the child has and what the cousin has and then add up all of the stickers."
    assert not is_relevant(STUDENT.relevance, answer, QUESTION)
    assert is_relevant(TA.relevance, answer, QUESTION)


def test_number_words_of_the_question_are_not_among_the_numbers_that_must_be_named() -> None:
    rule = RelevanceRule(min_words=1, min_numbers=2)
    assert not is_relevant(rule, "seven and 12", "There are seven boys and 12 girls.")
    assert is_relevant(rule, "seven and twelve", "There are 7 boys and 12 girls.")


@given(st.text(max_size=300), st.text(max_size=300))
def test_relevance_only_grows_with_more_text(answer: str, more: str) -> None:
    for persona in (STUDENT, TA):
        if is_relevant(persona.relevance, answer, QUESTION):
            assert is_relevant(persona.relevance, f"{answer} {more}", QUESTION)


@given(st.text(max_size=300))
def test_satisfied_means_both_rules(answer: str) -> None:
    for persona in (STUDENT, TA, TEACHER):
        both = meets_style(persona.style, answer) and is_relevant(persona.relevance, answer, QUESTION)
        assert satisfies(persona, answer, QUESTION) is both


def test_local_rules_are_those_that_were_measured() -> None:
    assert satisfies(STUDENT, PLAIN, QUESTION)
    assert not satisfies(STUDENT, PLAIN.replace(" so", "\n\nso"), QUESTION)
    assert not satisfies(TA, PLAIN, QUESTION)
    assert satisfies(TA, f"{PLAIN} {PLAIN}", QUESTION)
    assert word_count(f"{PLAIN} {PLAIN}") >= 38
    assert not satisfies(TEACHER, PLAIN, QUESTION)
    assert satisfies(TEACHER, f"Let's see. {PLAIN}", QUESTION)
