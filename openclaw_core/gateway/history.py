"""What a list of messages has in common with another: a hash chain over a conversation, and an index of such hashes.

What counts of a message: its role, its text without white space at the edges, the tools that it calls (name and arguments,
the JSON normalised) and nothing else. Clients leave reasoning out, make up ids of their own, send an empty text as null and
serialise arguments again; none of that makes it another conversation. System and developer messages do not count at all:
clients put the time of day there.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterator, Sequence
from hashlib import blake2b
from typing import Any, Generic, TypeVar

from openclaw_core.types import Message

Digest = bytes

DIGEST_BYTES = 16
"""At a billion histories, two of them share a hash of this length with a probability of about 1e-21."""

_START: Digest = bytes(DIGEST_BYTES)
_SILENT = ("system", "developer")

Key = TypeVar("Key", bound=Hashable)


class History:
    """The messages of one request that count, and the hash of each prefix: ``chain[n]`` is that of the first n messages."""

    __slots__ = ("chain", "conversation")

    def __init__(self, messages: Sequence[Message]) -> None:
        self.conversation: tuple[Message, ...] = tuple(m for m in messages if m["role"] not in _SILENT)
        chain = [_START]
        for message in self.conversation:
            chain.append(extend(chain[-1], message))
        self.chain: tuple[Digest, ...] = tuple(chain)

    @property
    def whole(self) -> Digest:
        """The hash of all messages: what the model is asked."""
        return self.chain[-1]

    def __len__(self) -> int:
        return len(self.conversation)

    def holds(self, digest: Digest, length: int) -> bool:
        """Whether the first ``length`` messages are those with this hash."""
        return length < len(self.chain) and self.chain[length] == digest

    def answered(self) -> Iterator[Digest]:
        """The hash right after each answer, the last answer first."""
        for index in range(len(self.conversation) - 1, -1, -1):
            if self.conversation[index]["role"] == "assistant":
                yield self.chain[index + 1]


def extend(digest: Digest, message: Message) -> Digest:
    """The hash of a history that goes on with ``message``."""
    hashed = blake2b(digest, digest_size=DIGEST_BYTES)
    for part in _parts(message):
        data = part.encode("utf-8", "surrogatepass")
        # Lengths keep ("ab", "c") and ("a", "bc") apart.
        hashed.update(len(data).to_bytes(8, "big"))
        hashed.update(data)
    return hashed.digest()


def answer_message(text: str, tool_calls: Sequence[dict[str, Any]] = ()) -> Message:
    """An answer of ours as a client sends it back."""
    return {"role": "assistant", "content": text, "tool_calls": list(tool_calls)}


def _parts(message: Message) -> Iterator[str]:
    yield message["role"]
    yield (message.get("content") or "").strip()
    for call in message.get("tool_calls") or ():
        yield call["function"]["name"]
        yield normal_json(call["function"].get("arguments") or "{}")


def normal_json(text: str) -> str:
    """JSON in one fixed form; what is no JSON, or nested too deeply to read, as it is but for white space at the edges."""
    try:
        return json.dumps(json.loads(text, parse_float=_number), sort_keys=True, separators=(",", ":"))
    except (ValueError, RecursionError):
        return text.strip()


def _number(text: str) -> int | float:
    """JavaScript has one kind of number and writes 1.0 as 1."""
    value = float(text)
    return int(value) if value.is_integer() else value


class HistoryIndex(Generic[Key]):
    """Hash of a history → what stands at that point of a conversation. Every operation takes constant time.

    ``waiting`` holds all that wait there for a reaction, of several with one history the newest first; ``known`` the newest
    that has been there. ``user`` is part of the place: a person's requests find only that person's conversations.
    """

    def __init__(self) -> None:
        # Nearly always one to a place, so a dict (ordered, removal in constant time) is made only for a second one.
        self._waiting: dict[Digest, Key | dict[Key, None]] = {}
        self._known: dict[Digest, Key] = {}

    def __len__(self) -> int:
        """Number of places."""
        return len(self._waiting) + len(self._known)

    def wait(self, digest: Digest, user: str | None, item: Key) -> None:
        """``item`` waits at this place."""
        place = _place(digest, user)
        there = self._waiting.get(place)
        if there is None:
            self._waiting[place] = item
        elif isinstance(there, dict):
            there[item] = None
        else:
            self._waiting[place] = {there: None, item: None}

    def leave(self, digest: Digest, user: str | None, item: Key) -> None:
        """``item`` no longer waits at this place."""
        place = _place(digest, user)
        there = self._waiting[place]
        if isinstance(there, dict):
            del there[item]
        if not isinstance(there, dict) or not there:
            del self._waiting[place]

    def waiting(self, digest: Digest, user: str | None) -> Key | None:
        """The newest that waits at this place."""
        there = self._waiting.get(_place(digest, user))
        return next(reversed(there)) if isinstance(there, dict) else there

    def know(self, digest: Digest, user: str | None, item: Key) -> None:
        """``item`` has been at this place."""
        self._known[_place(digest, user)] = item

    def forget(self, digest: Digest, user: str | None, item: Key) -> None:
        """Undo ``know``, unless a newer one has taken the place."""
        place = _place(digest, user)
        if self._known.get(place) is item:
            del self._known[place]

    def known(self, digest: Digest, user: str | None) -> Key | None:
        """The newest that has been at this place."""
        return self._known.get(_place(digest, user))


def _place(digest: Digest, user: str | None) -> Digest:
    if user is None:
        return digest
    return blake2b(digest + user.encode("utf-8", "surrogatepass"), digest_size=DIGEST_BYTES).digest()
