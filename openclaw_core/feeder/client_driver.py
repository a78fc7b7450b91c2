"""The plain driver: conversations by the OpenAI client, the history kept here. No tools, hence no files."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from openclaw_core.config.schema import RunConfig
from openclaw_core.feeder.client import Answer, GatewayClient
from openclaw_core.feeder.driver import Driver
from openclaw_core.types import Message, TurnType


class ClientDriver:
    """Speaks Driver; its tasks share nothing but the client."""

    def __init__(self, config: RunConfig, base_url: str, api_key: str) -> None:
        self._gateway = GatewayClient(config, base_url, api_key)

    @asynccontextmanager
    async def task(self, task_id: str, files: Mapping[str, str]) -> AsyncIterator[ClientDriver]:
        """The driver itself: without file tools the conversations of a task have nothing in common."""
        yield self

    @asynccontextmanager
    async def converse(self, session_id: str) -> AsyncIterator[ClientConversation]:
        """A conversation under this session id."""
        yield ClientConversation(self._gateway, session_id)

    async def aclose(self) -> None:
        """Close the connections."""
        await self._gateway.aclose()


class ClientConversation:
    """Speaks Conversation: every request carries all that was said before."""

    def __init__(self, gateway: GatewayClient, session_id: str) -> None:
        self._gateway = gateway
        self._session_id = session_id
        self._messages: list[Message] = []

    async def say(self, message: str) -> Answer:
        """The answer to the person's next message. Raises TaskFailed or FeederError."""
        asked: list[Message] = [*self._messages, {"role": "user", "content": message}]
        answer = await self._gateway.chat(asked, TurnType.MAIN, self._session_id)
        self._messages = [*asked, {"role": "assistant", "content": answer.text}]
        return answer

    async def close(self, message: str | None) -> None:
        """End the session, with the person's last word if there is one; no answer is generated. Raises as ``say``."""
        await self._gateway.close_session(self._session_id, message)


def open_driver(config: RunConfig, base_url: str, api_key: str) -> Driver:
    """The driver that ``feeder.driver`` names, for the gateway at ``base_url`` (with ``/v1``). Raises FeederError."""
    if config.feeder.driver == "client":
        return ClientDriver(config, base_url, api_key)
    from openclaw_core.feeder.openclaw_cli import OpenClawDriver  # looks for Node, which nobody else needs

    return OpenClawDriver(config, base_url, api_key)
