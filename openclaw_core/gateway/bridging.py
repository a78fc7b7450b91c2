"""Bridged prompts: a session's next prompt goes on from the very ids that were sampled (gateway.history: bridged)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from openclaw_core.gateway.history import History, answer_message
from openclaw_core.gateway.rendering import ChatRenderer, Rendering
from openclaw_core.types import Message, Turn

_TURNS = 4096
"""Last turns whose ids are kept; the session of an older one is rendered."""


@dataclass(frozen=True, slots=True)
class _Stored:
    turn: Turn
    rendering: Rendering
    tools: tuple[dict[str, Any], ...]


class Bridges:
    """Last turns by id, with their ids."""

    def __init__(self, renderer: ChatRenderer) -> None:
        self._renderer = renderer
        self._stored: OrderedDict[str, _Stored] = OrderedDict()

    def remember(self, turn: Turn, rendering: Rendering, tools: tuple[dict[str, Any], ...]) -> None:
        """A turn was captured."""
        self._stored[turn.turn_id] = _Stored(turn, rendering, tools)
        if len(self._stored) > _TURNS:
            self._stored.popitem(last=False)

    def prompt(self, turn_id: str, messages: Sequence[Message], tools: tuple[dict[str, Any], ...]) -> Rendering | None:
        """The prompt for ``messages``, which go on after that turn; None where they, or the family, want it rendered.

        Every message up to the answer must be what it was, system turns too: their ids are in the prompt that is kept.
        """
        stored = self._stored.pop(turn_id, None)
        if stored is None or stored.tools != tools:
            return None
        asked = stored.turn.messages
        if tuple(messages[: len(asked)]) != asked or len(messages) <= len(asked):
            return None
        answer = answer_message(stored.turn.answer, stored.turn.tool_calls)
        if History([messages[len(asked)]]).whole != History([answer]).whole:
            return None
        new = messages[len(asked) + 1 :]
        return self._renderer.bridge(stored.rendering, stored.turn.response_ids, new, tools)
