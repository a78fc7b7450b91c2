r"""A hint that quotes the known answer is told, however the number is written; one that does not is left alone."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openclaw_core.judge.leakage import quotes_answer, tokens

WORDS = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen twenty"
)
NUMBER_WORDS = WORDS.split()


@pytest.mark.parametrize(
    ("hint", "answer"),
    [
        ("The total is 72 eggs.", "72"),
        ("Say 72.", "72.0"),
        ("It comes to $1,000, so say so.", "1000"),
        ("It comes to 1000.0.", "1,000"),
        (r"It comes to $1{,}000$.", "1000"),
        (r"It comes to $1\,000$.", "$1000"),
        (r"End with \boxed{72}.", "72"),
        ("Say 72 clearly.", r"\boxed{72}"),
        (r"It is \frac{1}{2} of it.", "0.5"),
        (r"It is \dfrac{ 3 }{ 4 }.", "3/4"),
        ("Half of it, .5, is left.", "1/2"),
        ("They have seven left.", "7"),
        ("Say 7.", "seven"),
        ("Say 72.", "Natalia sold 48/2 = 24 clips.\n48+24 = 72\n#### 72"),
        ("Say 72.", "72 clips"),
        ("Say x=5 first.", "x = 5"),
        ("Is it -5?", "5"),
        ("It is 72km away.", "72"),
        ("答案是72。", "72"),
        ("The capital is New   York, of course.", "new york"),
        ("首都是北京。", "北京"),
    ],
)
def test_the_answer_is_found_in_every_form(hint: str, answer: str) -> None:
    assert quotes_answer(hint, answer)


@pytest.mark.parametrize(
    ("hint", "answer"),
    [
        ("Use 172, 720, 72.5, 7,200 and 0.72.", "72"),
        ("See file72 and x_72.", "72"),
        ("Version 7.2.1 says so.", "7"),
        ("There are twenty-one of them.", "20"),
        ("There are twenty-one of them.", "1"),
        ("Write one-paragraph answers.", "1"),
        ("Take 1/2 of it.", "2"),
        ("Only #### 48 counts here.", "48 + 24 #### 72"),
        ("York is not new.", "New York"),
        ("Anything 5.", ""),
        ("Anything.", "..."),
        ("", "72"),
    ],
)
def test_only_whole_tokens_of_the_final_answer_count(hint: str, answer: str) -> None:
    assert not quotes_answer(hint, answer)


def written(value: int) -> st.SearchStrategy[str]:
    forms = [f"{value}", f"{value:,}", f"{value}.0", f"{value:,}.00", f"${value:,}", f"\\boxed{{{value}}}", f"{value}%"]
    forms += [f"{value:,}".replace(",", "{,}"), f"{value:,}".replace(",", "\\,"), f"**{value}**", f"({value})"]
    forms += [NUMBER_WORDS[value], NUMBER_WORDS[value].upper()] if value <= 20 else []
    return st.sampled_from(forms)


NOISE = st.lists(
    st.sampled_from(["the", "total", "is", "so", "say", "it,", "then", "—", "用", "\\text{of}", "x_1y"]), max_size=6
)


@given(st.integers(0, 10**9).flatmap(lambda n: st.tuples(written(n), written(n))), NOISE, NOISE)
def test_two_ways_to_write_a_number_are_one_answer(forms: tuple[str, str], before: list[str], after: list[str]) -> None:
    hint, answer = forms
    assert quotes_answer(" ".join([*before, hint, *after]), answer)


@given(st.integers(0, 10**6), st.integers(0, 10**6), NOISE)
def test_another_number_is_no_quote(answer: int, other: int, before: list[str]) -> None:
    hint = " ".join([*before, f"{other:,}", "of them"])
    assert quotes_answer(hint, str(answer)) == (answer == other)


@given(st.integers(0, 999), st.text("0123456789", min_size=1, max_size=3), st.booleans())
def test_digits_inside_a_longer_number_are_no_quote(answer: int, digits: str, before: bool) -> None:
    longer = f"{digits}{answer}" if before else f"{answer}{digits}"
    assert quotes_answer(f"take {longer} of them", str(answer)) == (int(longer) == answer)


@given(st.integers(-99, 99), st.integers(1, 99))
def test_a_fraction_is_its_value(above: int, below: int) -> None:
    assert tokens(f"\\frac{{{abs(above)}}}{{{below}}}") == [Fraction(abs(above), below)]


@given(st.text(max_size=40), st.text(max_size=20))
def test_any_text_can_be_looked_at(hint: str, answer: str) -> None:
    assert quotes_answer(hint, answer) in (True, False)
