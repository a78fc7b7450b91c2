"""What the tests of the openclaw CLI share: a model that knows tools and has a long context, a gateway over a ledger."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from transformers import AutoModelForCausalLM

from openclaw_core.config import RunConfig, load_config
from openclaw_core.engines.local import LocalEngine
from openclaw_core.engines.protocol import GenerateRequest, Tokens
from openclaw_core.gateway.admission import WaitingRoom
from openclaw_core.gateway.app import GatewayDeps, create_app
from openclaw_core.gateway.families import Qwen3FamilyRenderer
from openclaw_core.gateway.rendering import ChatRenderer
from openclaw_core.gateway.schema import parse_chat
from openclaw_core.ledger import Ledger
from openclaw_core.types import DropReason, NextState, Turn
from tests.gateway_world import API_KEY, Script, ScriptedEngine, World, serving_app
from tests.models import tiny_qwen3
from tests.ports import free_ports
from tests.qwen3_form import MARKERS, tiny_qwen3_tokenizer

CONTEXT = 16_384
SYSTEM_PROMPT = "You help with homework. Files are in your folder."


def tool_renderer() -> ChatRenderer:
    """Qwen3's form with the tiny tokenizer: the family that knows tools and reasoning."""
    tokenizer = tiny_qwen3_tokenizer(thinking=False)
    return ChatRenderer(tokenizer, Qwen3FamilyRenderer(tokenizer))  # pyright: ignore[reportArgumentType]


def tool_model(directory: Path) -> Path:
    """A random Qwen3 of 2 layers with a context of 16,384, whose tokenizer knows tools.

    It writes none of Qwen3's markers and no control token, so that every answer is text up to the length limit: the first
    number of each embedding is large and the same for all, and the markers' rows of the output matrix see only that number.
    """
    tokenizer = tiny_qwen3_tokenizer(thinking=False)
    tiny_qwen3(directory, tied=False, dtype=torch.float32, vocab_size=len(tokenizer), max_position_embeddings=CONTEXT)
    tokenizer.save_pretrained(directory)
    model: Any = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    never = tokenizer.convert_tokens_to_ids(["<|endoftext|>", "<|im_start|>", "<|im_end|>", *MARKERS])
    with torch.no_grad():
        model.model.embed_tokens.weight[:, 0] = 20.0
        model.lm_head.weight[never] = 0.0
        model.lm_head.weight[never, 0] = -50.0
    model.save_pretrained(directory)
    return directory


class RecordingLocalEngine(LocalEngine):
    """The real engine; ``sampled`` are (prompt ids, sampled ids) of each request, as they left it."""

    sampled: list[tuple[tuple[int, ...], tuple[int, ...]]]

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Tokens, None]:
        ids: tuple[int, ...] = ()
        try:
            async with contextlib.aclosing(super().generate(request)) as pieces:
                async for piece in pieces:
                    ids += piece.token_ids
                    yield piece
        finally:  # whoever asks stops at the last piece
            self.sampled.append((request.input_ids, ids))


def call(name: str, **arguments: Any) -> str:
    """A tool call as the model writes it."""
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


@dataclass(frozen=True)
class Post:
    """A chat request as it came over the wire."""

    headers: dict[str, str]
    body: bytes
    status: int

    @property
    def tags(self) -> tuple[str | None, str | None]:
        return self.headers.get("x-session-id"), self.headers.get("x-turn-type")

    def rendered(self, renderer: ChatRenderer) -> tuple[int, ...]:
        """The prompt that these messages and tools are."""
        request, messages = parse_chat(self.body, 1000)
        return renderer.render(messages, request.offered_tools).prompt_ids


@dataclass
class CliWorld(World):
    """A gateway whose turns go into a real ledger, and which remembers what came over the wire."""

    ledger: Ledger = field(kw_only=True)
    posts: list[Post] = field(default_factory=list)

    def turn(self, turn: Turn) -> None:
        self.ledger.add_turn(turn)
        super().turn(turn)

    def next_state(self, turn_id: str, state: NextState | DropReason) -> None:
        self.ledger.set_next_state(turn_id, state)
        self.journal.append(("settled", turn_id, state))
        super().next_state(turn_id, state)

    def session(self, session_id: str) -> list[tuple[Turn, NextState | DropReason | None]]:
        """A session's captured turns, each with what came after it."""
        states = dict(self.of("settled"))
        return [(turn, states.get(turn.turn_id)) for owner, turn in self.of("turn") if owner == session_id]

    @contextlib.asynccontextmanager
    async def serving_gateway(self) -> AsyncIterator[None]:
        deps = GatewayDeps(self.config, lambda: {"test": API_KEY}, self.engine.renderer, self.engine, self.room, self)
        async with serving_app(self._watched(create_app(deps)), self.config.ports.gateway):
            yield

    def _watched(self, app: ASGIApp) -> ASGIApp:
        async def watch(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] != "http" or not scope["path"].endswith("/chat/completions"):
                return await app(scope, receive, send)
            headers = {name.decode(): value.decode() for name, value in scope["headers"]}
            body, status = b"", 0

            async def hear() -> Message:
                nonlocal body
                body += (message := await receive()).get("body", b"")
                return message

            async def say(message: Message) -> None:
                nonlocal status
                status = message.get("status", status)
                await send(message)

            await app(scope, hear, say)
            self.posts.append(Post(headers, body, status))
            return None

        return watch


def config(**overrides: Any) -> RunConfig:
    """local-cpu with the CLI as its driver; overrides by name, dots written as two underscores."""
    values = {
        "model.context_length": CONTEXT,
        "rollout.max_response_tokens": 200,
        "feeder.driver": "openclaw_cli",
        "feeder.cli.system_prompt": SYSTEM_PROMPT,
        "feeder.cli.timeout_s": 60,
    }
    return load_config(
        "local-cpu", free_ports() | values | {name.replace("__", "."): value for name, value in overrides.items()}
    )


@contextlib.asynccontextmanager
async def scripted(script: Script, folder: Path, **overrides: Any) -> AsyncIterator[CliWorld]:
    """A gateway that serves what ``script`` says; its ledger is in ``folder``."""
    settings = config(**overrides)
    engine = ScriptedEngine(tool_renderer(), script)
    engine.gate.set()
    room = WaitingRoom(hold_max_s=settings.rollout.hold_max_s, hold_max_requests=64)
    world = CliWorld(settings, engine, room, ledger=Ledger(folder / "ledger.sqlite"))
    async with world.serving_gateway():
        yield world
    world.ledger.close()
