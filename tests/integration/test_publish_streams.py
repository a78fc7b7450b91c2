"""Long answers are streamed through ten publishes: no stream breaks, and every id is the one that an engine sampled."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import openai
import pytest
import torch
from transformers import AutoModelForCausalLM

from openclaw_core.engines.local import LocalEngine
from openclaw_core.engines.protocol import GenerateRequest, Tokens
from openclaw_core.gateway.rendering import ChatRenderer
from openclaw_core.loop.publishing import Publisher
from openclaw_core.loop.samples import unfit
from openclaw_core.types import DropReason
from tests.gateway_parts import MODEL, tiny_config, user
from tests.gateway_server import Served, Weights, serve
from tests.models import tiny_llama

PUBLISHES, ANSWERS, TOKENS = 10, 6, 400


@dataclass
class Recorded:
    """The engine, and what it really sampled for each request: (version, id), call after call."""

    engine: LocalEngine
    sampled: dict[str, list[tuple[int, int]]] = field(default_factory=lambda: defaultdict(list))
    calls: list[GenerateRequest] = field(default_factory=list)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)

    async def load_weights(self, weights: Weights, version: int, checksum: str) -> None:
        await self.engine.load_weights(weights.tensors, version, checksum)

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Tokens, None]:
        self.calls.append(request)
        async for tokens in self.engine.generate(request):
            self.sampled[request.request_id] += [(tokens.weight_version, token) for token in tokens.token_ids]
            yield tokens


def never_stopping(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The same weights, but the stop token (id 2) is never sampled: answers end at their limit.

    One direction of the residual stream is constant, and only the stop token's logit depends on it.
    """
    for name, tensor in weights.items():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            tensor[0] = 0
    weights["model.embed_tokens.weight"][:, 0] = 5
    weights["model.norm.weight"][0] = 1
    weights["lm_head.weight"][:, 0] = 0
    weights["lm_head.weight"][2] = 0
    weights["lm_head.weight"][2, 0] = -50
    return weights


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tiny_llama(tmp_path_factory.mktemp("model"), tied=False, dtype=torch.float32)
    policy = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    with torch.no_grad():
        never_stopping(dict(policy.named_parameters()))
    policy.save_pretrained(directory)
    return directory


@pytest.fixture
async def served(model: Path) -> AsyncIterator[Served]:
    config = tiny_config(model__context_length=512, rollout__max_response_tokens=TOKENS)
    engine = LocalEngine(model, dtype="fp32", threads=1)
    async with serve(ChatRenderer.from_pretrained(model), Recorded(engine), config) as served:
        yield served
    engine.close()


def versions(model: Path, count: int) -> list[dict[str, torch.Tensor]]:
    """Other weights for each version."""
    found: list[dict[str, torch.Tensor]] = []
    for seed in range(count):
        torch.manual_seed(seed)
        policy = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
        other = {name: p.detach() + 0.02 * torch.randn_like(p) for name, p in policy.named_parameters()}
        found.append(never_stopping(other))
    return found


async def publish(publisher: Publisher, tensors: dict[str, torch.Tensor], version: int) -> None:
    await publisher.publish(cast(Any, Weights.of(tensors)), version)


async def stream(client: openai.AsyncOpenAI, session: str) -> tuple[str, int]:
    """The text that a client puts together, and how many chunks it came in."""
    chunks = await client.chat.completions.create(
        model=MODEL, messages=[user(f"Count, {session}.")], stream=True, extra_headers={"X-Session-Id": session}
    )
    texts = [chunk.choices[0].delta.content or "" async for chunk in chunks]
    return "".join(texts), len(texts)


@pytest.mark.parametrize("on_publish", ["continue", "drain"])
async def test_streams_go_on_through_publishes(served: Served, model: Path, on_publish: str) -> None:
    engine, sink = served.engine, served.sink
    rollout = served.config.rollout.model_copy(update={"on_publish": on_publish, "drain_max_s": 0.02})
    publisher = Publisher(served.room, engine, rollout)
    async with served.client() as client:
        answers = [asyncio.create_task(stream(client, f"s{n}")) for n in range(ANSWERS)]
        for version, tensors in enumerate(versions(model, PUBLISHES), start=1):
            await served.sampling(len(served.sampled()) + 5 * ANSWERS)
            await publish(publisher, tensors, version)
        texts = await asyncio.gather(*answers)

    assert len(sink.turns) == ANSWERS
    for turn in sink.turns:
        sampled = engine.sampled[turn.turn_id]
        assert turn.response_ids == tuple(token for _, token in sampled)
        assert len(turn.response_ids) == len(turn.rollout_logprobs) == TOKENS
        spread = [version for version, count in turn.version_spans for _ in range(count)]
        assert spread == [version for version, _ in sampled]
        assert spread == sorted(spread)
        assert turn.weight_version == spread[0]
        text, chunks = texts[int(turn.session_id[1:])]
        assert text == turn.answer
        assert chunks > TOKENS / 4
    # Each answer went through several versions, and was asked for again with what it had so far.
    assert all(len(turn.version_spans) > PUBLISHES / 2 for turn in sink.turns)
    again = [call for call in engine.calls if call.continued]
    assert len(again) > ANSWERS * PUBLISHES / 2
    for call in again:
        told = tuple(token for _, token in engine.sampled[call.request_id][: call.continued])
        assert call.input_ids[-call.continued :] == told
        assert call.sampling.max_new_tokens == TOKENS - call.continued


async def test_log_probs_are_those_of_the_version_that_each_token_names(served: Served, model: Path) -> None:
    weights = versions(model, 2)
    publisher = Publisher(served.room, served.engine, served.config.rollout)
    async with served.client() as client:
        for version, tensors in enumerate(weights, start=1):
            if version == 2:
                answer = asyncio.create_task(stream(client, "s0"))
                await served.sampling(20)
            await publish(publisher, tensors, version)
        await answer
    (turn,) = served.sink.turns
    (first, count), (second, _) = turn.version_spans
    assert (first, second) == (1, 2)
    after = await served.engine.prefill_logprobs(turn.prompt_ids, turn.response_ids, turn.sampling.temperature)
    assert turn.rollout_logprobs[count:] == pytest.approx(after[count:], abs=1e-3)
    await publish(publisher, weights[0], 3)
    before = await served.engine.prefill_logprobs(turn.prompt_ids, turn.response_ids, turn.sampling.temperature)
    assert turn.rollout_logprobs[:count] == pytest.approx(before[:count], abs=1e-3)
    assert turn.rollout_logprobs[count:] != pytest.approx(before[count:], abs=1e-3)
    assert unfit(turn, version=2, max_staleness=0) is DropReason.STALE
    assert unfit(turn, version=2, max_staleness=1) is None


async def test_a_strict_run_drops_exactly_the_mixed_answers(served: Served, model: Path) -> None:
    """One answer ends before the publish, one is mixed, one begins after it."""
    (tensors,) = versions(model, 1)
    publisher = Publisher(served.room, served.engine, served.config.rollout)
    async with served.client() as client:
        await stream(client, "before")
        mixed = asyncio.create_task(stream(client, "mixed"))
        await served.sampling(TOKENS + 20)
        await publish(publisher, tensors, 1)
        await asyncio.gather(mixed, stream(client, "after"))
    reasons = {turn.session_id: unfit(turn, version=1, max_staleness=0) for turn in served.sink.turns}
    assert reasons == {"before": DropReason.STALE, "mixed": DropReason.STALE, "after": None}
    assert unfit(next(t for t in served.sink.turns if t.session_id == "before"), version=0, max_staleness=0) is None
