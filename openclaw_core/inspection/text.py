"""Text of unknown origin, made fit for a terminal."""

from __future__ import annotations

import unicodedata

_JOINERS = "\u200c\u200d"
"""Invisible, harmless, and part of many scripts and emoji."""


def printable(text: str, *, lines: bool = False) -> str:
    """``text`` with every character visible that would steer a terminal: escapes, overrides of direction, lone surrogates.

    Control characters become their Unicode pictures (ESC is ␛), others their code (\\u202e). Line breaks and tabs are kept
    with ``lines``, else become spaces.
    """
    return "".join(_shown(character, lines) for character in text)


def one_line(text: str, limit: int) -> str:
    """``text`` in one line of at most ``limit`` characters, the last an ellipsis where some are left out."""
    return shortened(" ".join(printable(text).split()), limit)


def shortened(text: str, limit: int) -> str:
    """At most ``limit`` characters, the last an ellipsis where some are left out."""
    return text if len(text) <= limit else f"{text[: limit - 1].rstrip()}…"


def _shown(character: str, lines: bool) -> str:
    if character in "\n\t":
        return character if lines else " "
    if unicodedata.category(character) not in ("Cc", "Cf", "Cs", "Zl", "Zp") or character in _JOINERS:
        return character
    code = ord(character)
    if code < 0x20:
        return chr(0x2400 + code)
    return "␡" if code == 0x7F else f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"
