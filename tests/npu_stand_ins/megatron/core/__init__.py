"""Notes its import."""

from events import EVENTS

EVENTS.append("megatron.core")
