"""The gateway on a loopback port, with whatever engine a test brings: what real clients are pointed at."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import openai
import torch

from openclaw_core.config import RunConfig
from openclaw_core.gateway.admission import WaitingRoom
from openclaw_core.gateway.app import GatewayDeps, create_app
from openclaw_core.gateway.rendering import ChatRenderer
from openclaw_core.weights.checksum import checksum
from tests.gateway_parts import API_KEY, RecordingSink
from tests.serving import START_DEADLINE_S, serving_app


@dataclass
class Weights:
    """A version as it is published, without a trainer: for engines in this process."""

    tensors: dict[str, torch.Tensor]
    checksum: str

    @classmethod
    def of(cls, tensors: dict[str, torch.Tensor]) -> Weights:
        return cls(tensors, checksum(tensors.items()))


@dataclass
class Served:
    """A gateway on a loopback port, and its parts."""

    url: str
    config: RunConfig
    sink: RecordingSink
    room: WaitingRoom
    engine: Any
    renderer: ChatRenderer

    def sampled(self) -> list[tuple[int, int]]:
        """All that a recording engine has sampled."""
        return [token for tokens in self.engine.sampled.values() for token in tokens]

    async def sampling(self, tokens: int) -> None:
        """Wait until a recording engine has sampled so many tokens in all."""
        async with asyncio.timeout(START_DEADLINE_S):
            while len(self.sampled()) < tokens:
                await asyncio.sleep(0.001)

    def client(self, **options: Any) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(**({"base_url": self.url, "api_key": API_KEY, "max_retries": 0} | options))


@contextlib.asynccontextmanager
async def serve(
    renderer: ChatRenderer, engine: Any, config: RunConfig, *, batch_size: int | None = None, keys: dict[str, str] | None = None
) -> AsyncIterator[Served]:
    """With a ``batch_size``, turns whose reaction is known hold places in the batch: those in ``sink.judging``."""
    sink = RecordingSink()
    room = WaitingRoom(hold_max_s=30.0, hold_max_requests=64, batch_size=batch_size, occupancy=lambda: len(sink.judging))
    app = create_app(GatewayDeps(config, lambda: keys or {"test": API_KEY}, renderer, engine, room, sink))
    async with serving_app(app) as url:
        yield Served(f"{url}/v1", config, sink, room, engine, renderer)
