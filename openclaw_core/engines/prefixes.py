"""Keys and values of finished sequences, for requests that begin with the same ids: a session's next turn, above all."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from openclaw_core.engines.slots import KeysValues


@dataclass(frozen=True, slots=True, eq=False)
class _Entry:
    ids: np.ndarray
    kept: KeysValues


class PrefixStore:
    """Holds at most ``capacity`` tokens; the least recently used sequence leaves first. What counts is ids, not sessions."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._entries: OrderedDict[int, _Entry] = OrderedDict()
        self._added = 0

    @property
    def tokens(self) -> int:
        """Tokens held."""
        return sum(len(entry.ids) for entry in self._entries.values())

    def longest(self, ids: Sequence[int]) -> KeysValues | None:
        """Keys and values of the longest known beginning of ``ids``, or None.

        The last id is never among them: the next token's logits come from feeding it.
        """
        wanted, best, found = np.asarray(ids[:-1]), 0, None
        for key, entry in self._entries.items():
            if min(len(wanted), len(entry.ids)) > best and (common := _common(wanted, entry.ids)) > best:
                best, found = common, key
        if found is None:
            return None
        self._entries.move_to_end(found)
        return self._entries[found].kept[:, :, :, :best]

    def put(self, ids: Sequence[int], read: Callable[[], KeysValues]) -> None:
        """Keep what ``read`` gives for ``ids``; it is called only where they are not held yet and not too many."""
        if not 0 < len(ids) <= self._capacity:
            return
        new = np.asarray(ids)
        for key, entry in list(self._entries.items()):
            common = _common(new, entry.ids)
            if common == len(new):
                self._entries.move_to_end(key)
                return
            if common == len(entry.ids):  # the same sequence, as it was a turn ago
                del self._entries[key]
        self._added += 1
        self._entries[self._added] = _Entry(new, read())
        while self.tokens > self._capacity:
            self._entries.popitem(last=False)

    def clear(self) -> None:
        """Forget everything: it was computed with other weights."""
        self._entries.clear()


def _common(one: np.ndarray, other: np.ndarray) -> int:
    length = min(len(one), len(other))
    differs = one[:length] != other[:length]
    return int(differs.argmax()) if differs.any() else length
