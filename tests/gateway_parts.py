"""The gateway's parts for tests: a tiny model's real renderer and engine, a sink that remembers, and a client."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import httpx
from fastapi import FastAPI

from openclaw_core.config import RunConfig, load_config
from openclaw_core.engines.protocol import Engine
from openclaw_core.gateway.admission import WaitingRoom
from openclaw_core.gateway.app import GatewayDeps, create_app
from openclaw_core.gateway.clients import KeySource
from openclaw_core.gateway.rendering import ChatRenderer
from openclaw_core.types import DropReason, NextState, Turn

API_KEY = "sk-test"
MODEL = "tiny"


@dataclass
class RecordingSink:
    """Remembers what was captured, in order: a Turn, or (turn id, next state)."""

    events: list[Turn | tuple[str, NextState | DropReason]] = field(default_factory=list)
    judging: set[str] = field(default_factory=set)
    """Turns whose reaction has come; a test takes them out when it likes."""

    def turn(self, turn: Turn) -> None:
        self.events.append(turn)

    def next_state(self, turn_id: str, state: NextState | DropReason) -> None:
        self.events.append((turn_id, state))
        if isinstance(state, NextState):
            self.judging.add(turn_id)

    @property
    def turns(self) -> list[Turn]:
        return [event for event in self.events if isinstance(event, Turn)]

    @property
    def states(self) -> dict[str, NextState | DropReason]:
        return dict(event for event in self.events if isinstance(event, tuple))


def tiny_config(**overrides: Any) -> RunConfig:
    """local-cpu, as small as the tiny models; overrides by name, dots written as two underscores."""
    values = {"model.name": MODEL, "model.context_length": 256, "rollout.max_response_tokens": 12}
    return load_config("local-cpu", values | {name.replace("__", "."): value for name, value in overrides.items()})


@dataclass
class Gateway:
    """An assembled gateway, and everything a test wants to look at."""

    config: RunConfig
    sink: RecordingSink
    room: WaitingRoom
    app: FastAPI
    client: httpx.AsyncClient

    async def chat(
        self, messages: list[dict[str, Any]], *, session: str | None = None, headers: Any = None, **body: Any
    ) -> httpx.Response:
        """One chat request; ``session`` makes it a main turn."""
        tags = {"X-Session-Id": session} if session else {}
        request = {"model": MODEL, "messages": messages, **body}
        return await self.client.post("/v1/chat/completions", json=request, headers=tags | (headers or {}))


def assemble(
    renderer: ChatRenderer,
    engine: Engine,
    config: RunConfig | None = None,
    *,
    pending: Iterable[Turn] = (),
    keys: KeySource = lambda: {"test": API_KEY},
    **room: Any,
) -> Gateway:
    """A gateway whose client speaks to it in this process, without a socket."""
    config, sink = config or tiny_config(), RecordingSink()
    waiting = WaitingRoom(**({"hold_max_s": 5.0, "hold_max_requests": 8} | room))
    app = create_app(GatewayDeps(config, keys, renderer, engine, waiting, sink), pending)
    client = httpx.AsyncClient(
        transport=httpx.ASGITransport(app, raise_app_exceptions=False),
        base_url="http://gateway",
        headers={"Authorization": f"Bearer {API_KEY}"},
    )
    return Gateway(config, sink, waiting, app, client)


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}
