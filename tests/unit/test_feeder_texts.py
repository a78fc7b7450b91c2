"""Counting in English and Chinese texts, and the rules of the Chinese personas."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openclaw_core.feeder import load_personas
from openclaw_core.feeder.persona import RelevanceRule
from openclaw_core.feeder.rules import is_relevant, marks, meets_style, satisfies
from openclaw_core.feeder.texts import content_words, first_words, has_phrase, numbers, word_count

STUDENT, TA, TEACHER = load_personas("homework-zh", ["student", "ta", "teacher"])
QUESTION = "小明有7支铅笔，又买了12支铅笔，平均分给2个同学，每个同学分到几支铅笔？"
PLAIN = "小明原来有7支铅笔，又买了12支，合起来是19支铅笔，平均分给2个同学，每人9支，还剩下1支铅笔没有分出去。"


@pytest.mark.parametrize(
    ("text", "words"),
    [("我有7支铅笔。", 6), ("用 LaTeX 写", 3), ("it's 3 pens", 3), ("，。！", 0), ("", 0), ("第12题", 3)],
)
def test_a_chinese_character_counts_as_a_word(text: str, words: int) -> None:
    assert word_count(text) == words


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("七支和十二支", {"7", "12"}),
        ("二十", {"20"}),
        ("三十五", {"35"}),
        ("两个", {"2"}),
        ("十", {"10"}),
        ("我们一起算", set()),
        ("7支，seven", {"7"}),
    ],
)
def test_chinese_numerals_are_numbers_but_for_a_single_one(text: str, found: set[str]) -> None:
    assert numbers(text) == found


def test_content_of_chinese_is_pairs_of_characters_without_common_ones() -> None:
    assert content_words("我们有铅笔") == {"们有", "有铅", "铅笔"}
    assert content_words("多少") == set()


@pytest.mark.parametrize(
    ("text", "count", "begun"),
    [
        ("one  two\nthree four", 3, "one two three"),
        ("one two", 5, "one two"),
        ("小明有7支铅笔", 4, "小明有7"),
        ("  \n", 3, ""),
        ("它是 nineteen，对吗", 3, "它是 nineteen，"),
    ],
)
def test_first_words_end_within_chinese_text_too(text: str, count: int, begun: str) -> None:
    assert first_words(text, count) == begun


@given(st.text(st.characters(max_codepoint=0x24F)), st.integers(1, 30))
def test_first_words_of_a_text_without_chinese_are_those_between_white_space(text: str, count: int) -> None:
    assert first_words(text, count) == " ".join(text.split()[:count])


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("你做得很好，继续努力！", True),
        ("这一步真棒", True),
        ("You did it: well done！", True),
        ("说well done吧", True),
        ("a swell donee", False),
        ("请重写", False),
    ],
)
def test_phrases_are_found_inside_chinese_sentences_and_not_inside_english_words(text: str, found: bool) -> None:
    assert has_phrase(text, ("做得很好", "真棒", "well done")) is found


@pytest.mark.parametrize(
    ("answer", "kinds"),
    [
        ("1、先相加\n2、再除", ["number"]),
        ("1.先相加", ["number"]),
        ("（2）再除", ["number"]),
        ("一、题目", ["number"]),
        ("(三)检查", ["number"]),
        ("步骤1：相加", ["step label"]),
        ("步骤二 相除", ["step label"]),
        ("第一步，相加", ["step label"]),
        ("第 2 步，相除", ["step label"]),
        ("**答案**是9", ["bold"]),
        ("我们第一步把两个数相加。", []),
        ("7.5元", []),
        (PLAIN, []),
    ],
)
def test_lists_and_step_labels_of_chinese_answers_are_marks(answer: str, kinds: list[str]) -> None:
    assert marks(answer) == kinds


def test_an_answer_about_the_question_is_relevant_and_another_one_is_not() -> None:
    rule = RelevanceRule(min_words=30, min_overlap=3)
    assert is_relevant(rule, PLAIN, QUESTION)
    assert not is_relevant(
        rule, "今天的天气真是好极了，大家都去公园里散步，看见很多花开了，孩子们在草地上放风筝，一直玩到傍晚。", QUESTION
    )


@pytest.mark.parametrize("persona", [STUDENT, TA, TEACHER], ids=lambda persona: persona.name)
@pytest.mark.parametrize(
    ("answer", "by"),
    [
        (PLAIN, {"student"}),
        (PLAIN.replace("，", "，\n- "), set()),
        (PLAIN * 4, {"student", "ta"}),
        (PLAIN + "你已经做得很好了，加油！", {"student", "teacher"}),
        ("做得很好！", set()),
    ],
    ids=["plain", "list", "long", "warm", "short"],
)
def test_the_chinese_personas_want_what_they_say(persona, answer: str, by: set[str]) -> None:
    assert satisfies(persona, answer, QUESTION) == (persona.name in by)


def test_length_for_the_chinese_ta_is_in_characters() -> None:
    assert meets_style(TA.style, "字" * 160) and not meets_style(TA.style, "字" * 159)
