"""The service's log as it grows: each line once, with its level, without what is told elsewhere."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from dataclasses import dataclass

ELSEWHERE = ("chat_answered",)
"""Events of single turns: they are in the ledger, and many."""

_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_LOGFMT = re.compile(r'timestamp="[^"]*" level=(\w+) (?=event=)')
_EVENT = re.compile(r"\bevent=(\w+)")


@dataclass(frozen=True, slots=True)
class LogLine:
    """``level`` as of the module logging; ``text`` without time and colours."""

    level: int
    text: str


class LogLines:
    """Takes the whole log of the latest attempt again and again, and gives what is new."""

    def __init__(self) -> None:
        self._attempt, self._read = 0, 0

    def new(self, attempt: int, text: str) -> Iterator[LogLine]:
        """The lines that have been completed since the last call. A new attempt is read from its start."""
        if attempt != self._attempt:
            self._attempt, self._read = attempt, 0
        end = text.rfind("\n") + 1
        lines = text[self._read : end].splitlines()
        self._read = max(self._read, end)
        for line in lines:
            clean = _COLOURS.sub("", line).rstrip()
            event = _EVENT.search(clean)
            if clean and (event is None or event[1] not in ELSEWHERE):
                yield _line(clean)


def _line(text: str) -> LogLine:
    """Lines of other programs have no level of ours."""
    said = _LOGFMT.search(text)
    if said is None:
        return LogLine(logging.INFO, text)
    level = logging.getLevelNamesMapping().get(said[1].upper(), logging.INFO)
    return LogLine(level, text[: said.start()] + text[said.end() :])
