"""What a persona finds of an answer: its style rule and its relevance rule, as pure functions of the texts."""

from __future__ import annotations

import re

from openclaw_core.feeder.persona import Persona, RelevanceRule, StyleRule

MARKS = {
    "bold": r"\*\*|__",
    "code": r"`",
    "heading": r"^\s*#+\s",
    "bullet": r"^\s*[-*+\u2022]\s",
    "number": r"^\s*\(?\d+[.)]\s",
    "step label": r"^\s*step\s*\d",
    "LaTeX": r"\\[\[\](){}a-z]|\$\$|\$[^$\n]*[\\=^][^$\n]*\$",
}
"""What counts as markdown or LaTeX. Prices such as $7 do not."""

_MARKS = {name: re.compile(pattern, re.MULTILINE | re.IGNORECASE) for name, pattern in MARKS.items()}
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3})")
_UP_TO_TWENTY = """zero one two three four five six seven eight nine ten
    eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen twenty"""
_NUMBER_WORDS = {word: str(value) for value, word in enumerate(_UP_TO_TWENTY.split())}
_COMMON = """about been does each every from have into many more much number only than that their them there they
    this total were what when which will with would"""
_COMMON_WORDS = frozenset(_COMMON.split())
_STEM = 5


def marks(answer: str) -> list[str]:
    """Kinds of markdown and LaTeX in the answer, by their names in ``MARKS``."""
    return [name for name, pattern in _MARKS.items() if pattern.search(answer)]


def word_count(text: str) -> int:
    """Words and numbers in a text."""
    return len(re.findall(r"[A-Za-z0-9']+", text))


def digit_numbers(text: str) -> set[str]:
    """Numbers that are written in digits, without thousands separators; a decimal counts as its two parts."""
    return set(re.findall(r"\d+", _THOUSANDS.sub("", text)))


def numbers(text: str) -> set[str]:
    """Numbers in digits, and the number words up to twenty."""
    words = re.findall(r"[a-z]+", text.lower())
    return digit_numbers(text) | {_NUMBER_WORDS[word] for word in words if word in _NUMBER_WORDS}


def content_words(text: str) -> set[str]:
    """Stems (the first five letters) of the words of four letters or more that are not common ones."""
    return {word[:_STEM] for word in re.findall(r"[a-z]{4,}", text.lower()) if word not in _COMMON_WORDS}


def meets_style(rule: StyleRule, answer: str) -> bool:
    """Whether an answer is written as the persona wants it. White space around it does not count."""
    answer = answer.strip()
    return (
        not (rule.no_markdown and marks(answer))
        and not (rule.one_paragraph and "\n" in answer)
        and word_count(answer) >= rule.min_words
        and (not rule.warm_phrases or _has_phrase(answer, rule.warm_phrases))
    )


def is_relevant(rule: RelevanceRule, answer: str, question: str) -> bool:
    """Whether an answer is about the question: long enough, and it shares numbers and words with it."""
    named = numbers(answer)
    overlap = len(numbers(question) & named) + len(content_words(question) & content_words(answer))
    return (
        word_count(answer) >= rule.min_words
        and len(digit_numbers(question) & named) >= rule.min_numbers
        and overlap >= rule.min_overlap
    )


def satisfies(persona: Persona, answer: str, question: str) -> bool:
    """Both rules: what the metrics call a satisfied first answer."""
    return meets_style(persona.style, answer) and is_relevant(persona.relevance, answer, question)


def _has_phrase(text: str, phrases: tuple[str, ...]) -> bool:
    text = text.replace("\u2019", "'")
    return any(re.search(rf"\b{re.escape(phrase)}\b", text, re.IGNORECASE) for phrase in phrases)
