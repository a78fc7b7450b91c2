r"""Does a hint quote the known answer of the problem?

A teacher that is given the answer teaches to name it, not to find it, so such a hint is refused (``quotes_answer``).
Hint and answer are read as tokens: numbers by their value, however they are written (1,000 = 1000 = 1000.0 = ``1{,}000``;
number words up to twenty; ``\frac{1}{2}`` = 1/2 = 0.5; signs are left out), words by their letters, without LaTeX and
punctuation. An answer that holds exactly one number is quoted by that number alone. Only whole tokens count: 72 is not in
172, 72.5 or 7,200.

The rule errs on the side of refusing: a hint that uses the number for something else is lost as well.
"""

from __future__ import annotations

import re
from fractions import Fraction

_WORDS = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen twenty"
)
_NUMBER_WORDS = {word: Fraction(value) for value, word in enumerate(_WORDS.split())}

# LaTeX and typography that stand inside or around a number.
_PLAIN = (
    (re.compile(r"\\[dt]?frac\s*\{\s*([^{}]*?)\s*\}\s*\{\s*([^{}]*?)\s*\}"), r" \1/\2 "),
    (re.compile(r"(?<=\d)\{,\}(?=\d)"), ","),
    (re.compile(r"(?<=\d)(?:\\[,;: ]|[\u00a0\u2009\u202f])(?=\d{3}(?!\d))"), ","),
    (re.compile(r"\\[a-zA-Z]+"), " "),
)
# Digits with what joins them to one number or to a list of numbers; not those of a name (id3). Or a word.
_TOKEN = re.compile(
    r"(?<![a-z_\d])(?P<run>(?:(?<!\w)\.)?\d+(?:[.,/]\d+)*)|"
    # Chinese has no spaces: a character is a word.
    r"(?P<word>[\u3400-\u9fff]|[^\W\d_\u3400-\u9fff]+(?:[-'’][^\W\d_\u3400-\u9fff]+)*)"
)
_GROUPED = re.compile(r"\d{1,3}(?:,\d{3})+(?:\.\d+)?")
_NUMBER = re.compile(r"\d*\.?\d+")

Token = Fraction | str


def quotes_answer(hint: str, answer: str) -> bool:
    """Whether ``hint`` names ``answer``, the known answer of the problem.

    Of an answer in GSM8K's form only what follows the last ``####`` counts. An answer without a number or a word, such as
    an empty one, is never quoted.
    """
    wanted = tokens(answer.rpartition("####")[2])
    said = tokens(hint)
    numbers = [token for token in wanted if isinstance(token, Fraction)]
    if len(numbers) == 1:
        return numbers[0] in said
    return bool(wanted) and any(said[at : at + len(wanted)] == wanted for at in range(len(said) - len(wanted) + 1))


def tokens(text: str) -> list[Token]:
    """The numbers, by value, and the words, in lower case, of a text."""
    for pattern, plain in _PLAIN:
        text = pattern.sub(plain, text)
    found: list[Token] = []
    for match in _TOKEN.finditer(text.casefold()):
        if match["run"] is not None:
            found += _values(match["run"])
        else:
            found.append(_NUMBER_WORDS.get(match["word"], match["word"]))
    return found


def _values(run: str) -> list[Fraction]:
    """Of one number, a fraction, or a list without spaces (1,2,3; a date). What has more than one point is none."""
    parts = run.split("/")
    if len(parts) == 2 and all(len(_plain_values(part)) == 1 for part in parts):
        above, below = (_plain_values(part)[0] for part in parts)
        return [above / below] if below else [above]
    return [value for part in parts for value in _plain_values(part)]


def _plain_values(part: str) -> list[Fraction]:
    if _GROUPED.fullmatch(part):
        return [Fraction(part.replace(",", ""))]
    return [Fraction(number) for number in part.split(",") if _NUMBER.fullmatch(number)]
