"""The real gateway over HTTP, with an engine that answers from a script: what clients of the gateway are tested against.

Beside it a control API that only counts. Both write to one journal, so that tests see what came before what.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse

from openclaw_core.config import RunConfig, load_config
from openclaw_core.engines.protocol import EngineError, GenerateRequest, Tokens
from openclaw_core.gateway.admission import WaitingRoom
from openclaw_core.gateway.app import create_app
from openclaw_core.gateway.chat import GatewayDeps
from openclaw_core.gateway.rendering import ChatRenderer
from openclaw_core.types import DropReason, FinishReason, NextState, Turn
from tests.ports import free_ports
from tests.serving import serving_app

API_KEY = "gateway-key"
CONTROL_TOKEN = "control-token"

Script = Callable[[str], str]
"""The prompt as text → the answer."""


@dataclass
class ScriptedEngine:
    """Speaks the Engine protocol; what it says is up to ``script``. ``gate``: answers wait until it is open."""

    renderer: ChatRenderer
    script: Script
    grammars: bool = False
    weight_version: int = 0
    failures: int = 0
    """Requests that fail before the next one succeeds."""
    requests: list[GenerateRequest] = field(default_factory=list)
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    busy: int = 0
    most_busy: int = 0

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Tokens, None]:
        self.requests.append(request)
        self.busy += 1
        self.most_busy = max(self.busy, self.most_busy)
        try:
            await self.gate.wait()
            await asyncio.sleep(0.002)
            if self.failures:
                self.failures -= 1
                raise EngineError("the engine is told to fail")
            ids = self.renderer.tokenizer.encode(self.script(self.text(request)), add_special_tokens=False)
            ended = len(ids) < request.sampling.max_new_tokens
            ids = [*ids, request.stop_token_ids[0]] if ended else ids[: request.sampling.max_new_tokens]
            finish = FinishReason.STOP if ended else FinishReason.LENGTH
            for token in ids[:-1]:
                yield Tokens((token,), (-0.5,), self.weight_version)
            yield Tokens((ids[-1],), (-0.5,), self.weight_version, finish)
        finally:
            self.busy -= 1

    async def pause(self) -> None:
        self.gate.clear()

    async def resume(self) -> None:
        self.gate.set()

    async def prefill_logprobs(self, prompt_ids: Any, response_ids: Any, temperature: float) -> tuple[float, ...]:
        return (-0.5,) * len(response_ids)

    async def load_weights(self, weights: Any, version: int, checksum: str) -> None:
        self.weight_version = version

    async def version(self) -> int:
        return self.weight_version

    def text(self, request: GenerateRequest) -> str:
        return str(self.renderer.tokenizer.decode(list(request.input_ids)))


@dataclass
class World:
    """Gateway and control API, and the journal of what reached them: (what, session id, details)."""

    config: RunConfig
    engine: ScriptedEngine
    room: WaitingRoom
    state: str = "ready"
    problems: int = 0
    journal: list[tuple[str, str, Any]] = field(default_factory=list)
    turns: dict[str, Turn] = field(default_factory=dict)

    def turn(self, turn: Turn) -> None:
        self.turns[turn.turn_id] = turn
        self.journal.append(("turn", turn.session_id, turn))

    def next_state(self, turn_id: str, state: NextState | DropReason) -> None:
        self.journal.append(("next_state", self.turns[turn_id].session_id, state))

    def of(self, what: str) -> list[tuple[str, Any]]:
        """Session id and details of the journal's entries of one kind, in order."""
        return [(session, details) for kind, session, details in self.journal if kind == what]

    @property
    def gateway_url(self) -> str:
        return f"http://127.0.0.1:{self.config.ports.gateway}/v1"

    @property
    def control_url(self) -> str:
        return f"http://127.0.0.1:{self.config.ports.control}"

    @contextlib.asynccontextmanager
    async def serving_gateway(self) -> AsyncIterator[None]:
        keys, engine = {"test": API_KEY}, self.engine
        app = create_app(GatewayDeps(self.config, lambda: keys, engine.renderer, engine, self.room, self))
        async with serving_app(app, self.config.ports.gateway):
            yield

    @contextlib.asynccontextmanager
    async def serving_control(self) -> AsyncIterator[None]:
        async with serving_app(self._control_app(), self.config.ports.control):
            yield

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        async with self.serving_gateway(), self.serving_control():
            yield

    async def until(self, condition: Callable[[], bool], deadline_s: float = 60) -> None:
        """Wait for something to have happened."""
        async with asyncio.timeout(deadline_s):
            while not condition():
                await asyncio.sleep(0.01)

    def _control_app(self) -> FastAPI:
        app = FastAPI()

        @app.middleware("http")
        async def authorised(request: Request, call_next: Any) -> Any:
            if request.headers.get("authorization") != f"Bearer {CONTROL_TOKEN}":
                return JSONResponse({"error": {"message": "wrong token"}}, 401)
            return await call_next(request)

        @app.get("/status")
        async def status() -> dict[str, Any]:
            return {"run_id": "test", "state": self.state, "error": None, "problems": self.problems, "steps": 20}

        @app.post("/sessions/{session_id}/outcome", status_code=204)
        async def outcome(session_id: str, request: Request) -> None:
            self.journal.append(("outcome", session_id, await request.json()))

        return app


def build_world(model_dir: Path, script: Script, overrides: dict[str, Any] | None = None) -> World:
    """A world on free ports; ``model_dir`` holds a tokenizer (tests.models.tiny_llama)."""
    config = load_config("local-cpu", free_ports() | (overrides or {}))
    engine = ScriptedEngine(ChatRenderer.from_pretrained(model_dir), script)
    engine.gate.set()
    room = WaitingRoom(hold_max_s=config.rollout.hold_max_s, hold_max_requests=config.rollout.hold_max_requests)
    return World(config, engine, room)
