"""How requests find their sessions and turns their end, in numbers, and what /status advises when nothing can be learned."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum

from openclaw_core.types import DropReason

ENOUGH = 8
"""Conversations without an id, of which not one went on, after which something is probably wrong."""


class Found(StrEnum):
    """How a request's session was found. Each member is a metric label."""

    HEADER = "header"
    """By X-Session-Id."""
    METADATA = "metadata"
    """By ``metadata.session_id``."""
    HISTORY = "history"
    """By its messages: they go on from those of a known session."""
    OPENED = "opened"
    """It carries no id and goes on from no known session: it opens one."""
    NONE = "none"
    """It carries no id, and ``gateway.session_inference`` is off: nothing is learned from it."""
    SIDE = "side"
    """The client calls it a side turn; nothing is to be learned from it."""


@dataclass(slots=True)
class Counts:
    """Since the gateway's start. ``inference``: whether sessions are inferred from histories."""

    inference: bool
    requests: Counter[Found] = field(default_factory=Counter)
    next_states: int = 0
    """Turns that got a next state."""
    drops: Counter[DropReason] = field(default_factory=Counter)
    """Turns that will get none."""


def advice(counts: Counts) -> str | None:
    """What to set so that something is learned from the requests that came, for /status. None where all is well."""
    untagged = counts.requests[Found.NONE]
    if untagged:
        asked = counts.requests.total() - counts.requests[Found.SIDE]
        return (
            f"{untagged} of {asked} requests carried no session id and gateway.session_inference is off: send X-Session-Id or "
            "metadata.session_id, or set gateway.session_inference=on"
        )
    opened = counts.requests[Found.OPENED]
    if opened >= ENOUGH and not counts.requests[Found.HISTORY]:
        return (
            f"{opened} conversations without a session id were opened and none was continued: either nobody reacts to the "
            "answers, or the clients rewrite the history (edit, shorten or summarise earlier messages), so that it cannot be "
            "recognised; send X-Session-Id or metadata.session_id"
        )
    diverged = counts.drops[DropReason.HISTORY_DIVERGED]
    if diverged >= ENOUGH and not counts.next_states:
        return (
            f"no turn has got a next state, and {diverged} were dropped as history_diverged: the clients send back other "
            "answers than they got (edited, shortened or summarised), or several conversations share one session id; send the "
            "answers back as they came, and give each conversation a session id of its own"
        )
    return None
