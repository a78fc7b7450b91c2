"""Counting words, numbers and content in English and Chinese texts. A Chinese character counts as a word."""

from __future__ import annotations

import re

CJK = "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
"""Chinese characters, for use inside a character class."""

_WORD = re.compile(rf"[A-Za-z0-9']+|[{CJK}]")
_PIECE = re.compile(rf"[{CJK}]|[^\s{CJK}]+")
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3})")

_UP_TO_TWENTY = """zero one two three four five six seven eight nine ten
    eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen twenty"""
_NUMBER_WORDS = {word: str(value) for value, word in enumerate(_UP_TO_TWENTY.split())}
_NUMERALS = {"一": 1, "二": 2, "两": 2, "三": 3, "四": 4, "五": 5, "六": 6, "七": 7, "八": 8, "九": 9}
_NUMERAL = re.compile("([二三四五六七八九])?(十)([一二三四五六七八九])?|[二两三四五六七八九]")

_COMMON = """about been does each every from have into many more much number only than that their them there they
    this total were what when which will with would"""
_COMMON_WORDS = frozenset(_COMMON.split())
_STEM = 5
_COMMON_CHINESE = """一共 一个 一些 一下 一样 多少 几个 这个 那个 这些 那些 这样 那么 什么 怎么 如果 因为 所以 但是 而且
    然后 还有 还是 只有 已经 可以 我们 你们 他们 她们 它们 自己 每个 每天 总共 需要 问题 答案 题目 同学 老师 学生"""
_COMMON_PAIRS = frozenset(_COMMON_CHINESE.split())


def word_count(text: str) -> int:
    """Words and numbers in a text; each Chinese character is one."""
    return len(_WORD.findall(text))


def first_words(text: str, count: int) -> str:
    """The first ``count`` words of a text, its white space made single blanks; each Chinese character is a word."""
    pieces = list(_PIECE.finditer(text))[:count]
    return " ".join(text[: pieces[-1].end()].split()) if pieces else ""


def digit_numbers(text: str) -> set[str]:
    """Numbers that are written in digits, without thousands separators; a decimal counts as its two parts."""
    return set(re.findall(r"\d+", _THOUSANDS.sub("", text)))


def numbers(text: str) -> set[str]:
    """Numbers in digits, the English number words up to twenty, and the Chinese numerals up to 99.

    A single \u4e00 (one) is no number: it is part of too many words.
    """
    words = re.findall(r"[a-z]+", text.lower())
    return (
        digit_numbers(text)
        | {_NUMBER_WORDS[word] for word in words if word in _NUMBER_WORDS}
        | {_numeral_value(match) for match in _NUMERAL.finditer(text)}
    )


def content_words(text: str) -> set[str]:
    """What a text is about: stems of its English words, pairs of its Chinese characters; common ones left out.

    A stem is the first five letters of a word of four letters or more.
    """
    stems = {word[:_STEM] for word in re.findall(r"[a-z]{4,}", text.lower()) if word not in _COMMON_WORDS}
    runs = re.findall(rf"[{CJK}]{{2,}}", text)
    pairs = {run[start : start + 2] for run in runs for start in range(len(run) - 1)}
    return stems | (pairs - _COMMON_PAIRS)


def has_phrase(text: str, phrases: tuple[str, ...]) -> bool:
    """Whether one of the phrases occurs, in any case: English ones as whole words, Chinese ones anywhere."""
    text = text.replace("\u2019", "'")
    return any(re.search(_bounded(phrase), text, re.IGNORECASE) for phrase in phrases)


def _bounded(phrase: str) -> str:
    """The phrase, not inside a longer word. Chinese words have no bounds in a text: a phrase's Chinese end is not bounded."""
    letter = rf"[^\W{CJK}]"
    before = rf"(?<!{letter})" if re.match(letter, phrase[0]) else ""
    after = rf"(?!{letter})" if re.match(letter, phrase[-1]) else ""
    return f"{before}{re.escape(phrase)}{after}"


def _numeral_value(match: re.Match[str]) -> str:
    if not match[2]:
        return str(_NUMERALS[match[0]])
    return str(10 * _NUMERALS.get(match[1], 1) + _NUMERALS.get(match[3], 0))
