"""The states of a publish, their deadlines, and what the sender of the weights looks like from here."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from openclaw_core.config.schema import SGLangConfig


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


class WeightBucket(Protocol):
    """What is sent in one go: Hugging Face names, torch dtype names (``bfloat16``) and shapes, in the order of sending."""

    @property
    def names(self) -> tuple[str, ...]: ...
    @property
    def dtypes(self) -> tuple[str, ...]: ...
    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]: ...


class BroadcastWeights(Protocol):
    """The sender's side of a publish (weights/publish.py: PublishedWeights)."""

    @property
    def checksum(self) -> str: ...
    @property
    def buckets(self) -> tuple[WeightBucket, ...]: ...
    async def open_group(self, name: str, world_size: int, backend: str) -> tuple[str, int]: ...
    async def group_joined(self, name: str) -> None: ...
    async def send(self, name: str, bucket: int) -> None: ...
    async def close_group(self, name: str) -> None: ...
