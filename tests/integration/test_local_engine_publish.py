"""New weights in the local engine: what runs is broken off and goes on with them, and nothing of the old ones is left."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from openclaw_core.engines.local import LocalEngine
from openclaw_core.engines.protocol import EngineError, GenerateRequest
from openclaw_core.types import FinishReason
from openclaw_core.weights.checksum import checksum
from tests.engine_parts import (
    PROMPTS,
    Answer,
    Start,
    answer,
    local_engines,
    named_weights,
    publish,
    request,
    until_aborted,
)
from tests.models import tiny_llama


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("old"), dtype=torch.float32)


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("new"), seed=1, dtype=torch.float32)


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    with local_engines() as start:
        yield start


def rest_of(whole: GenerateRequest, so_far: Answer) -> GenerateRequest:
    """What the gateway asks for after an abort."""
    done = len(so_far.token_ids)
    sampling = replace(whole.sampling, max_new_tokens=whole.sampling.max_new_tokens - done)
    return replace(whole, input_ids=whole.input_ids + so_far.token_ids, continued=done, sampling=sampling)


async def broken_off(engine: LocalEngine, whole: GenerateRequest) -> Answer:
    """Begin the request and pause the engine after some tokens."""
    before = engine.stats()["generated_tokens"]
    running = asyncio.create_task(until_aborted(engine, whole))
    while engine.stats()["generated_tokens"] < before + 9:
        await asyncio.sleep(0)
    await engine.pause()
    return await asyncio.wait_for(running, 10)


async def test_pause_breaks_off_what_runs_and_waits_and_keeps_what_comes_then(llama: Path, start: Start) -> None:
    engine = start(llama, max_batch=1)
    running = asyncio.create_task(until_aborted(engine, request(PROMPTS[0], new=2000, stop=())))
    waiting = asyncio.create_task(until_aborted(engine, request(PROMPTS[1], new=2000, stop=())))
    while engine.stats()["generated_tokens"] < 5:
        await asyncio.sleep(0)
    await engine.pause()
    await engine.pause()
    assert (len((await running).token_ids) >= 5, len((await waiting).token_ids)) == (True, 0)
    late = asyncio.create_task(answer(engine, request(PROMPTS[2], new=4, stop=())))
    await asyncio.sleep(0.05)
    generated = engine.stats()["generated_tokens"]
    assert (late.done(), engine.stats()["waiting"], engine.stats()["running"]) == (False, 1, 0)
    assert await engine.prefill_logprobs(PROMPTS[1], (5, 6), 1.0)  # needs no place
    await engine.resume()
    await engine.resume()
    assert len((await late).token_ids) == 4
    assert engine.stats()["generated_tokens"] == generated + 4


async def test_a_resume_that_comes_during_a_pause_does_not_undo_it(llama: Path, start: Start) -> None:
    engine = start(llama)
    running = asyncio.create_task(until_aborted(engine, request(PROMPTS[0], new=2000, stop=())))
    while engine.stats()["generated_tokens"] < 3:
        await asyncio.sleep(0)
    await asyncio.gather(engine.pause(), engine.resume())
    assert len((await running).token_ids) < 100
    assert (await answer(engine, request(PROMPTS[0], new=2, stop=()))).finish_reason is FinishReason.LENGTH


@pytest.mark.parametrize(
    "shape", [{}, {"repetition_penalty": 1.4, "frequency_penalty": 0.6, "presence_penalty": 0.3}, {"temperature": 0.0}]
)
async def test_an_answer_that_goes_on_is_the_one_it_would_have_been(llama: Path, start: Start, shape: dict[str, Any]) -> None:
    """Same weights: so random numbers, penalties and keys and values must all be as if nothing had happened."""
    engine = start(llama)
    whole = request(PROMPTS[3], new=60, stop=(), **({"temperature": 1.0, "seed": 5} | shape))
    expected = await answer(engine, whole)
    so_far = await broken_off(engine, whole)
    await engine.resume()
    rest = await answer(engine, rest_of(whole, so_far))
    assert 0 < len(so_far.token_ids) < 60
    assert so_far.token_ids + rest.token_ids == expected.token_ids
    assert so_far.logprobs + rest.logprobs == pytest.approx(expected.logprobs, abs=1e-4)


async def test_an_answer_goes_on_with_new_weights_as_a_fresh_engine_would(llama: Path, other: Path, start: Start) -> None:
    engine = start(llama, prefix_cache_tokens=1000)
    whole = request(PROMPTS[4], temperature=0.0, new=60, stop=())
    before = await answer(engine, whole)  # leaves its keys and values in the engine
    so_far = await broken_off(engine, whole)
    assert so_far.token_ids == before.token_ids[: len(so_far.token_ids)]
    weights, cached = named_weights(other), engine.stats()["cached_tokens"]
    await publish(engine, weights, 1)
    rest = await answer(engine, rest_of(whole, so_far))
    expected = await answer(start(other), rest_of(whole, so_far))
    assert rest.token_ids == expected.token_ids != before.token_ids[len(so_far.token_ids) :]
    assert rest.logprobs == pytest.approx(expected.logprobs, abs=1e-4)
    assert engine.stats()["cached_tokens"] == cached  # nothing of the old weights was used
    assert (set(so_far.versions), set(rest.versions)) == ({0}, {1})


@pytest.mark.parametrize("tied", [True, False])
async def test_new_weights_are_served_without_a_restart(tmp_path: Path, start: Start, tied: bool) -> None:
    old, new = (tiny_llama(tmp_path / name, seed=seed, tied=tied) for seed, name in enumerate(("old", "new")))
    engine, expecting = start(old, dtype="bf16"), start(new, dtype="bf16")
    before = await answer(engine, request(PROMPTS[3], temperature=0.0))
    await publish(engine, named_weights(new, torch.bfloat16), 1)
    after = await answer(engine, request(PROMPTS[3], temperature=0.0))
    expected = await answer(expecting, request(PROMPTS[3], temperature=0.0))
    assert (set(before.versions), set(after.versions), await engine.version()) == ({0}, {1}, 1)
    assert after.token_ids == expected.token_ids != before.token_ids
    assert after.logprobs == expected.logprobs


async def test_weights_are_not_taken_while_requests_may_run(llama: Path, other: Path, start: Start) -> None:
    engine, weights = start(llama), named_weights(other)
    with pytest.raises(EngineError, match="version 1 cannot be loaded while requests may run; pause the engine first"):
        await engine.load_weights(weights, 1, checksum(weights.items()))
    assert await engine.version() == 0


def without_last(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return dict(list(weights.items())[:-1])


def reshaped(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return weights | {"model.norm.weight": torch.ones(3)}


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (without_last, r"model\.norm\.weight is missing"),
        (reshaped, r"model\.norm\.weight is \[3\], not \[64\]"),
        (lambda weights: weights | {"lm_head.weight": torch.ones(1)}, r"lm_head\.weight is not a weight of this model"),
    ],
)
async def test_weights_that_do_not_fit_are_refused_and_the_old_version_is_left(
    llama: Path, other: Path, start: Start, spoil: Callable[[Any], Any], message: str
) -> None:
    engine = start(llama)
    before = await answer(engine, request(PROMPTS[3], seed=1))
    with pytest.raises(EngineError, match=message):
        await publish(engine, spoil(named_weights(other)), 1)
    await engine.resume()
    assert await answer(engine, request(PROMPTS[3], seed=1)) == before


async def test_a_wrong_checksum_is_refused_and_the_old_version_is_left(llama: Path, other: Path, start: Start) -> None:
    engine, weights = start(llama), named_weights(other)
    before = await answer(engine, request(PROMPTS[3], seed=1))
    announced = checksum(weights.items())
    weights["model.norm.weight"] = weights["model.norm.weight"] + 1e-3
    await engine.pause()
    with pytest.raises(EngineError, match=f"version 1 arrived with checksum .*, not {announced}; still serving 0"):
        await engine.load_weights(weights, 1, announced)
    assert await engine.version() == 0
    await engine.resume()
    assert await answer(engine, request(PROMPTS[3], seed=1)) == before


async def test_what_waits_for_the_resume_is_not_broken_off_by_a_second_pause(llama: Path, start: Start) -> None:
    engine = start(llama)
    await engine.pause()
    held, left = (asyncio.create_task(answer(engine, request(PROMPTS[i], new=3, stop=()))) for i in (0, 1))
    await asyncio.sleep(0)
    await engine.pause()
    left.cancel()
    await asyncio.wait({left})
    assert engine.stats()["waiting"] == 1
    await engine.resume()
    assert len((await held).token_ids) == 3
