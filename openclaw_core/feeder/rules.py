"""What a persona finds of an answer: its style rule and its relevance rule, as pure functions of the texts."""

from __future__ import annotations

import re

from openclaw_core.feeder.persona import Persona, RelevanceRule, StyleRule
from openclaw_core.feeder.texts import CJK, content_words, digit_numbers, has_phrase, numbers, word_count

_NUMERAL = "[一二三四五六七八九十]+"
MARKS = {
    "bold": r"\*\*|__",
    "code": r"`",
    "heading": r"^\s*#+\s",
    "bullet": r"^\s*[-*+\u2022]\s",
    "number": rf"^\s*(?:\(?\d+[.)](?:\s|(?=[{CJK}]))|[(\uff08]?\d+[\u3001\uff0e\uff09]|[(\uff08]?{_NUMERAL}[\u3001)\uff09])",
    "step label": rf"^\s*(?:step\s*\d|\u6b65\u9aa4\s*(?:\d|{_NUMERAL})|\u7b2c\s*(?:\d+|{_NUMERAL})\s*\u6b65)",
    "LaTeX": r"\\[\[\](){}a-z]|\$\$|\$[^$\n]*[\\=^][^$\n]*\$",
}
"""What counts as markdown or LaTeX, in English and Chinese texts. Prices such as $7 do not."""

_MARKS = {name: re.compile(pattern, re.MULTILINE | re.IGNORECASE) for name, pattern in MARKS.items()}


def marks(answer: str) -> list[str]:
    """Kinds of markdown and LaTeX in the answer, by their names in ``MARKS``."""
    return [name for name, pattern in _MARKS.items() if pattern.search(answer)]


def meets_style(rule: StyleRule, answer: str) -> bool:
    """Whether an answer is written as the persona wants it. White space around it does not count."""
    answer = answer.strip()
    return (
        not (rule.no_markdown and marks(answer))
        and not (rule.one_paragraph and "\n" in answer)
        and word_count(answer) >= rule.min_words
        and (rule.max_words is None or word_count(answer) <= rule.max_words)
        and all(pattern.search(answer) for pattern in rule.patterns)
        and not any(pattern.search(answer) for pattern in rule.forbidden)
        and (not rule.warm_phrases or has_phrase(answer, rule.warm_phrases))
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
