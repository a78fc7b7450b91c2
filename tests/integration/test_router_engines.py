"""Two real engine processes behind the router; one is killed in the middle of an answer."""

from __future__ import annotations

import asyncio
import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest
import ray
import torch
from transformers import AutoModelForCausalLM

from openclaw_core.engines.protocol import GenerateRequest, OwnedEngine, Tokens
from openclaw_core.engines.ray_engine import RayEngine
from openclaw_core.engines.router import Router, StartEngine
from openclaw_core.gateway.admission import WaitingRoom
from openclaw_core.gateway.answering import sample
from openclaw_core.types import FinishReason, Sampling
from openclaw_core.weights.checksum import checksum
from tests.gateway_parts import tiny_config
from tests.models import tiny_llama

pytestmark = pytest.mark.usefixtures("ray_cluster")

PROMPT = tuple(range(40, 60))
GREEDY = Sampling(0.0, 400)


@dataclass
class Interruptions:
    count: int = 0

    def __call__(self) -> None:
        self.count += 1


def pid_of(engine: OwnedEngine | None) -> int:
    actor = cast(RayEngine, engine)._actor
    return ray.get(actor.__ray_call__.remote(lambda _: os.getpid()))


async def test_an_answer_goes_on_elsewhere_when_its_engine_is_killed_and_the_engine_comes_back(tmp_path: Path) -> None:
    model = tiny_llama(tmp_path / "model", dtype=torch.float32)
    config = tiny_config(model__context_length=512, engine__dtype="fp32", engine__threads=1)

    def starts(name: str) -> StartEngine:
        async def start() -> OwnedEngine:
            engine = RayEngine.start(config, model, name=name)
            await engine.ready()
            return engine

        return start

    router = Router([(name, starts(name)) for name in ("engine-0", "engine-1")], wait_s=60)
    await router.start()
    try:
        weights = {name: p.detach() * 1.1 for name, p in AutoModelForCausalLM.from_pretrained(model).named_parameters()}
        await router.pause()
        await router.load_weights(weights, 5, checksum(weights.items()))
        await router.resume()
        room, interrupted = WaitingRoom(hold_max_s=60, hold_max_requests=8), Interruptions()

        async def answer(name: str, kill_after: int | None) -> list[Tokens]:
            request = GenerateRequest(name, PROMPT, GREEDY, (10**6,), session_id=name)
            pieces: list[Tokens] = []
            async for tokens in sample(router, room, request, interrupted=interrupted):
                pieces.append(tokens)
                if len(pieces) == kill_after:
                    slot = next(slot for slot in router.slots if slot.in_flight)
                    os.kill(pid_of(slot.engine), signal.SIGKILL)
            return pieces

        whole = await answer("undisturbed", None)
        assert interrupted.count == 0
        broken = await answer("killed", 20)
        assert interrupted.count == 1

        def ids(pieces: list[Tokens]) -> list[int]:
            return [token for tokens in pieces for token in tokens.token_ids]

        assert ids(broken) == ids(whole)
        assert len(ids(whole)) == GREEDY.max_new_tokens
        assert {tokens.weight_version for tokens in broken} == {5}
        assert broken[-1].finish_reason is FinishReason.LENGTH

        async with asyncio.timeout(60):
            while len(router.ready) < 2:
                await asyncio.sleep(0.1)
        again = next(slot for slot in router.slots if slot.restarts)
        assert again.engine is not None
        assert await again.engine.version() == 5
        probe: Any = [await slot.engine.prefill_logprobs(PROMPT, (7, 8, 9), 1.0) for slot in router.slots if slot.engine]
        assert probe[0] == pytest.approx(probe[1], abs=1e-6)
    finally:
        await router.close()
