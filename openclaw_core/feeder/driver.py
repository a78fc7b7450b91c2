"""How a simulated person reaches the assistant: by the OpenAI client, or by the real openclaw CLI.

A task is one problem, a conversation one person's session in it. What a task's people leave in files, the next one finds.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from openclaw_core.feeder.client import Answer


class Conversation(Protocol):
    """One session with the assistant."""

    async def say(self, message: str) -> Answer:
        """The answer to the person's next message. Raises TaskFailed or FeederError."""
        ...

    async def close(self, message: str | None) -> None:
        """End the session, with the person's last word if there is one; no answer is generated. Raises as ``say``."""
        ...


class TaskSpace(Protocol):
    """What the conversations of one task share."""

    def converse(self, session_id: str) -> AbstractAsyncContextManager[Conversation]:
        """A conversation under this session id."""
        ...


class Driver(Protocol):
    """Where conversations are held."""

    def task(self, task_id: str, files: Mapping[str, str]) -> AbstractAsyncContextManager[TaskSpace]:
        """The space of one task. ``files``: name → text, for assistants that have file tools; others do not get them."""
        ...

    async def aclose(self) -> None:
        """Give everything back."""
        ...
