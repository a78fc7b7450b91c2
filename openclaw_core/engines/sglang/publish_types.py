"""The states of a publish and their deadlines."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from openclaw_core.config.serving import SGLangConfig


class State(StrEnum):
    """Where one server is between two versions."""

    SERVING = "serving"
    PAUSED = "paused"
    """Nothing runs; requests wait in the server."""
    FLUSHED = "flushed"
    """No key or value of the old weights is left in its cache."""
    SESSION_OPEN = "session open"
    """Only where the server has weight-update sessions."""
    SENDING = "sending"
    SESSION_CLOSED = "session closed"
    VERIFIED = "verified"
    """The server reports the new version; ready to resume."""
    FAILED = "failed"
    """A transition failed: refuses to resume until a complete load has succeeded."""


@dataclass(frozen=True, slots=True)
class Deadlines:
    """Seconds for each transition."""

    pause_s: float = 60
    flush_s: float = 60
    join_s: float = 120
    """To join the broadcast group, the first time and after the sender was restarted."""
    session_s: float = 120
    bucket_s: float = 300
    verify_s: float = 120
    resume_s: float = 60

    @classmethod
    def of(cls, config: SGLangConfig) -> Deadlines:
        """As a run is configured."""
        return cls(
            pause_s=config.pause_s,
            flush_s=config.flush_s,
            join_s=config.join_s,
            session_s=config.verify_s,
            bucket_s=config.bucket_s,
            verify_s=config.verify_s,
            resume_s=config.pause_s,
        )
