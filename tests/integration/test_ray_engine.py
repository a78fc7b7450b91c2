"""The engine as a Ray actor: the same answers, weights by reference, and every failure an EngineError."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
import torch
from transformers import AutoModelForCausalLM

from openclaw_core.config import RunConfig
from openclaw_core.engines.arrays import as_arrays
from openclaw_core.engines.local import LocalEngine
from openclaw_core.engines.protocol import EngineError, GenerateRequest
from openclaw_core.engines.ray_engine import RayEngine
from openclaw_core.types import Sampling
from openclaw_core.weights.checksum import checksum
from tests.gateway_parts import tiny_config
from tests.models import tiny_llama

PROMPT = (5, 9, 30, 41)


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    ray.init(num_cpus=1, include_dashboard=False, object_store_memory=100 * 2**20, log_to_driver=False)
    yield
    ray.shutdown()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("model"), dtype=torch.float32)


@pytest.fixture(scope="module")
def config() -> RunConfig:
    return tiny_config(engine__dtype="fp32", engine__threads=1, model__context_length=1024)


@pytest.fixture(scope="module")
def engine(model: Path, config: RunConfig) -> Iterator[RayEngine]:
    """One actor for all tests, since starting one takes seconds. Which weights it serves depends on the tests before."""
    engine = RayEngine.start(config, model)
    yield engine
    engine.stop()


def weights_of(model: Path) -> dict[str, torch.Tensor]:
    plain = AutoModelForCausalLM.from_pretrained(model)
    return {name: tensor.detach() for name, tensor in plain.named_parameters()}


def request(new: int = 12, prompt: tuple[int, ...] = PROMPT) -> GenerateRequest:
    return GenerateRequest("r", prompt, Sampling(1.0, new, seed=4), ())


async def test_the_actor_answers_as_the_engine_in_this_process(engine: RayEngine, model: Path) -> None:
    local, weights = LocalEngine(model, dtype="fp32", threads=1, version=7), weights_of(model)
    await engine.load_weights(weights, 7, checksum(weights.items()))
    assert await engine.generate(request()) == await local.generate(request())
    assert await engine.prefill_logprobs(PROMPT, (7, 8), 0.7) == await local.prefill_logprobs(PROMPT, (7, 8), 0.7)
    local.close()


FORMS: list[Callable[[dict[str, torch.Tensor]], Any]] = [
    lambda weights: weights,
    lambda weights: ray.put(weights),
    lambda weights: [ray.put(weights)],
    lambda weights: ray.put(as_arrays(weights)),
]


@pytest.mark.parametrize("form", range(len(FORMS)), ids=["mapping", "reference", "reference in a list", "arrays by reference"])
async def test_weights_arrive_in_every_form(engine: RayEngine, tmp_path: Path, form: int) -> None:
    version, weights = 10 + form, weights_of(tiny_llama(tmp_path, seed=10 + form, dtype=torch.float32))
    before = await engine.generate(request())
    await engine.load_weights(FORMS[form](weights), version, checksum(weights.items()))
    after = await engine.generate(request())
    assert after.weight_version == await engine.version() == version != before.weight_version
    assert after.token_ids != before.token_ids


async def test_a_refusal_comes_through_with_its_reason(engine: RayEngine) -> None:
    with pytest.raises(EngineError, match=r"^engine-0\.generate: the engine was given no token ids$"):
        await engine.generate(request(prompt=()))
    with pytest.raises(EngineError, match=r"engine-0\.load_weights: version 1 arrived with checksum"):
        await engine.load_weights({"x": torch.ones(1)}, 1, "0" * 64)


async def test_a_call_past_its_deadline_is_an_error_and_is_cancelled_in_the_actor(engine: RayEngine) -> None:
    await engine.generate(request(new=1))
    impatient = RayEngine(engine._actor, "engine-0", deadline_s=0.05)
    with pytest.raises(EngineError, match=r"engine-0\.generate did not answer within 0\.05 s"):
        await impatient.generate(request(new=1000))
    assert len((await asyncio.wait_for(engine.generate(request(new=2)), 20)).token_ids) == 2


async def test_a_dead_actor_is_an_error_for_running_and_later_calls(model: Path, config: RunConfig) -> None:
    engine = RayEngine.start(config, model, name="engine-1")
    await engine.generate(request(new=1))
    running = asyncio.create_task(engine.generate(request(new=1000)))
    await asyncio.sleep(0.2)
    engine.stop()
    for call in (running, engine.generate(request()), engine.version()):
        with pytest.raises(EngineError, match="engine-1 is dead"):
            await asyncio.wait_for(call, 30)
