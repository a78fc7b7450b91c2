"""A session's next turn computes only what is new, and answers as if everything had been computed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import torch

from openclaw_core.engines.local import LocalEngine
from tests.engine_parts import PROMPTS, Prompt, Start, answer, local_engines, request
from tests.models import tiny_llama, tiny_qwen3

NEW: Prompt = (11, 12, 13, 14, 15)


@pytest.fixture(scope="module", params=[tiny_llama, tiny_qwen3], ids=["llama", "qwen3"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return request.param(tmp_path_factory.mktemp("model"), dtype=torch.float32)


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    with local_engines() as start:
        yield start


def prefilled(engine: LocalEngine) -> int:
    """Prompt tokens that were computed so far."""
    return engine.stats()["prompt_tokens"] - engine.stats()["cached_tokens"]


async def test_second_turns_compute_what_is_new_and_answer_as_a_full_prefill(model: Path, start: Start) -> None:
    engine, plain = start(model, prefix_cache_tokens=2000), start(model)
    first = [request(prompt, temperature=0.0, new=10 + i, stop=()) for i, prompt in enumerate(PROMPTS)]
    answers = await asyncio.gather(*(answer(engine, one) for one in first))
    assert prefilled(engine) == sum(map(len, PROMPTS))
    turns = [
        request(one.input_ids + got.token_ids + NEW[: 1 + i % 5], temperature=0.0, new=12, stop=(), top_logprobs=5)
        for i, (one, got) in enumerate(zip(first, answers, strict=True))
    ]
    before = prefilled(engine)
    second = await asyncio.gather(*(answer(engine, one) for one in turns))  # prefixes of six lengths in one batch
    # The last token of an answer is sampled but never fed, so its keys and values are new.
    assert prefilled(engine) - before == sum(1 + 1 + i % 5 for i in range(len(turns)))
    for turn, got in zip(turns, second, strict=True):
        expected = await answer(plain, turn)
        assert got.token_ids == expected.token_ids
        assert got.logprobs == pytest.approx(expected.logprobs, abs=1e-4)


async def test_what_was_given_up_is_reused_too(model: Path, start: Start) -> None:
    engine, plain = start(model, prefix_cache_tokens=2000), start(model)
    running = engine.generate(request(PROMPTS[5], temperature=0.0, new=500, stop=()))
    ids = PROMPTS[5] + tuple([(await anext(running)).token_ids[0] for _ in range(8)])
    await running.aclose()
    turn = request(ids + NEW, temperature=0.0, new=12, stop=())
    before = prefilled(engine)
    got, expected = await answer(engine, turn), await answer(plain, turn)
    assert got.token_ids == expected.token_ids
    assert prefilled(engine) - before <= 1 + len(NEW)


async def test_a_regenerated_turn_reuses_what_it_shares_and_nothing_else(model: Path, start: Start) -> None:
    engine, plain = start(model, prefix_cache_tokens=2000), start(model)
    await answer(engine, request(PROMPTS[5], new=10, stop=()))
    changed = (*PROMPTS[5][:50], *NEW, *PROMPTS[5][50:])
    before = prefilled(engine)
    got = await answer(engine, request(changed, temperature=0.0, new=12, stop=()))
    assert got.token_ids == (await answer(plain, request(changed, temperature=0.0, new=12, stop=()))).token_ids
    assert prefilled(engine) - before == len(changed) - 50


async def test_the_same_prompt_again_computes_its_last_token_only(model: Path, start: Start) -> None:
    engine = start(model, prefix_cache_tokens=2000)
    once = await answer(engine, request(PROMPTS[4], temperature=0.0, stop=()))
    before = prefilled(engine)
    again = await answer(engine, request(PROMPTS[4], temperature=0.0, stop=()))
    assert (again.token_ids, prefilled(engine) - before) == (once.token_ids, 1)


async def test_without_room_nothing_is_kept(model: Path, start: Start) -> None:
    engine = start(model, prefix_cache_tokens=0)
    for _ in range(2):
        await answer(engine, request(PROMPTS[4], stop=()))
    assert engine.stats()["cached_tokens"] == 0
