"""The engine as a Ray actor: the same answers as one stream, weights by reference, and every failure an EngineError."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import ray
import torch
from ray.exceptions import RayActorError

from openclaw_core.config import RunConfig
from openclaw_core.engines.protocol import EngineError, GenerateRequest, RequestRefused
from openclaw_core.engines.ray_engine import RayEngine
from openclaw_core.types import Sampling
from openclaw_core.weights.arrays import as_arrays
from openclaw_core.weights.checksum import checksum
from openclaw_core.weights.errors import PublishError
from openclaw_core.weights.shared import Segment, SharedWeights
from tests.engine_parts import answer, local_engines, named_weights, publish, until_aborted
from tests.gateway_parts import tiny_config
from tests.models import tiny_llama

PROMPT = (5, 9, 30, 41)
pytestmark = pytest.mark.usefixtures("ray_cluster")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("model"), dtype=torch.float32)


@pytest.fixture(scope="module")
def config() -> RunConfig:
    return tiny_config(engine__dtype="fp32", engine__threads=1, model__context_length=2048)


@pytest.fixture(scope="module")
def actor(ray_cluster: str, model: Path, config: RunConfig) -> Iterator[RayEngine]:
    """One actor for all tests, since starting one takes seconds. Which weights it serves depends on the tests before."""
    engine = RayEngine.start(config, model)
    yield engine
    ray.kill(engine._actor)


@pytest.fixture
async def engine(actor: RayEngine) -> AsyncIterator[RayEngine]:
    yield actor
    async with asyncio.timeout(20):  # whatever a test leaves must have been given up in the actor too
        while (await actor.stats())["running"] or (await actor.stats())["waiting"]:
            await asyncio.sleep(0.01)


def request(new: int = 12, prompt: tuple[int, ...] = PROMPT) -> GenerateRequest:
    return GenerateRequest("r", prompt, Sampling(1.0, new, seed=4), ())


async def test_the_actor_answers_as_the_engine_in_this_process(engine: RayEngine, model: Path) -> None:
    await publish(engine, named_weights(model), 7)
    with local_engines() as start:
        local = start(model, version=7, prefix_cache_tokens=1000)
        for new in (12, 1, 30):
            assert await answer(engine, request(new)) == await answer(local, request(new))
        expected = await local.prefill_logprobs(PROMPT, (7, 8), 0.7)
        assert await engine.prefill_logprobs(PROMPT, (7, 8), 0.7) == expected


async def test_the_tokens_of_a_step_are_one_event(engine: RayEngine) -> None:
    events = engine._actor.events.options(num_returns="streaming").remote("probe")
    for number in range(4):
        engine._actor.submit.remote("probe", number, request(10, (5 + number, *PROMPT)))
    seen: list[list[int]] = []
    tokens = 0
    async for reference in events:
        seen.append([number for number, _ in await reference])
        tokens += sum(len(piece.token_ids) for _, piece in await reference)
        if tokens == 40:
            break
    ray.cancel(events)
    assert [0, 1, 2, 3] in map(sorted, seen)
    assert len(seen) <= 16  # 10 steps, and some at the start where the four came one by one


@dataclass
class Published:
    """As far as an engine on this host looks at it."""

    reference: list[Any]


FORMS: dict[str, Callable[[dict[str, torch.Tensor]], Any]] = {
    "mapping": dict,
    "reference": lambda weights: Published([ray.put(as_arrays(weights))]),
}


@pytest.mark.parametrize("form", FORMS)
async def test_weights_arrive_in_both_forms(engine: RayEngine, tmp_path: Path, form: str) -> None:
    version = 10 + list(FORMS).index(form)
    weights = named_weights(tiny_llama(tmp_path, seed=version, dtype=torch.float32))
    before = await answer(engine, request())
    await publish(engine, weights, version, FORMS[form])
    after = await answer(engine, request())
    assert set(after.versions) == {await engine.version()} == {version} != set(before.versions)
    assert after.token_ids != before.token_ids


@dataclass
class OutOfReach:
    """Published on another host: ``reference`` leads to memory that is not here. ``stored``: for whoever asks for a copy."""

    reference: list[Any]
    stored: Any

    async def elsewhere(self) -> list[Any]:
        if isinstance(self.stored, PublishError):
            raise self.stored
        return [self.stored]


def out_of_reach(weights: dict[str, torch.Tensor]) -> SharedWeights:
    segment = Segment({name: tuple(tensor.shape) for name, tensor in weights.items()}, torch.float32)
    assert segment.begin()
    reference = segment.end(1)
    segment.close()
    return reference


async def test_an_engine_on_another_host_than_the_trainer_gets_its_weights_by_rays_object_store(
    engine: RayEngine, tmp_path: Path
) -> None:
    weights = named_weights(tiny_llama(tmp_path, seed=20, dtype=torch.float32))
    shared = out_of_reach(weights)
    await publish(engine, weights, 20, lambda named: OutOfReach([shared], ray.put(as_arrays(named))))
    assert set((await answer(engine, request())).versions) == {20}
    with pytest.raises(
        EngineError, match="engine-0, which is not beside the trainer, cannot get its weights: the sender is gone"
    ):
        await publish(engine, weights, 21, lambda _: OutOfReach([shared], PublishError("the sender is gone")))
    await engine.resume()
    assert await engine.version() == 20


async def test_an_engine_in_this_process_takes_a_reference_too(model: Path, tmp_path: Path) -> None:
    new = tiny_llama(tmp_path, seed=3, dtype=torch.float32)
    with local_engines() as start:
        engine = start(model)
        await publish(engine, named_weights(new), 1, FORMS["reference"])
        assert (await answer(engine, request())).token_ids == (await answer(start(new), request())).token_ids


async def test_a_pause_breaks_answers_off_and_holds_new_ones(engine: RayEngine) -> None:
    running = asyncio.create_task(until_aborted(engine, request(new=2000)))
    while not (await engine.stats())["running"]:
        await asyncio.sleep(0)
    await engine.pause()
    assert 0 < len((await running).token_ids) < 2000
    held = asyncio.create_task(answer(engine, request(new=2)))
    while not (await engine.stats())["waiting"]:
        await asyncio.sleep(0)
    assert not held.done()
    await engine.resume()
    assert len((await held).token_ids) == 2


async def test_a_refusal_comes_through_as_it_is(engine: RayEngine) -> None:
    with pytest.raises(RequestRefused, match=r"^engine-0\.generate: the engine was given no token ids$"):
        await answer(engine, request(prompt=()))
    with pytest.raises(RequestRefused, match=r"^engine-0\.prefill_logprobs: the engine was given no token ids$"):
        await engine.prefill_logprobs((), (5,), 1.0)
    with pytest.raises(EngineError, match=r"engine-0\.load_weights: version 1 arrived with checksum"):
        await publish(engine, {"x": torch.ones(1)}, 1, lambda _: {"x": torch.zeros(1)})
    await engine.resume()


async def test_closing_the_iterator_cancels_in_the_actor(engine: RayEngine) -> None:
    before = (await engine.stats())["generated_tokens"]
    stream = engine.generate(request(new=2000))
    await anext(stream)
    await stream.aclose()
    async with asyncio.timeout(20):
        while (await engine.stats())["running"]:
            await asyncio.sleep(0.001)
    assert (await engine.stats())["generated_tokens"] - before < 1500


async def test_a_request_given_up_before_it_came_is_not_begun(engine: RayEngine) -> None:
    before = await engine.stats()
    await engine._actor.cancel.remote("probe-2", 1)
    await engine._actor.submit.remote("probe-2", 1, request(new=2000))
    await answer(engine, request(new=3))
    assert (await engine.stats())["prompt_tokens"] - before["prompt_tokens"] == len(PROMPT)


async def test_a_request_without_a_token_for_too_long_is_an_error_and_given_up(engine: RayEngine) -> None:
    impatient = RayEngine(engine._actor, "engine-0", deadline_s=2.0)
    stream = impatient.generate(request(new=50))
    pieces = [await anext(stream)]
    await asyncio.sleep(2.1)  # longer than that in all, but not without a token
    pieces += [piece async for piece in stream]
    assert len(pieces) == 50
    await engine.pause()
    with pytest.raises(EngineError, match=r"engine-0: r got no token for 2 s \(engine\.deadline_s\)"):
        await answer(impatient, request())
    async with asyncio.timeout(20):
        while (await engine.stats())["waiting"]:
            await asyncio.sleep(0.001)
    await engine.resume()


async def test_a_call_past_its_deadline_is_an_error(engine: RayEngine) -> None:
    impatient = RayEngine(engine._actor, "engine-0", deadline_s=1e-6)
    with pytest.raises(EngineError, match=r"engine-0\.prefill_logprobs did not answer within 1e-06 s"):
        await impatient.prefill_logprobs(PROMPT, (5, 6), 1.0)
    assert await engine.prefill_logprobs(PROMPT, (5, 6), 1.0)


async def test_a_dead_actor_is_an_error_for_all_who_wait_and_for_later_calls(model: Path, config: RunConfig) -> None:
    engine = RayEngine.start(config, model, name="engine-1")
    await engine.ready()
    running = [asyncio.create_task(answer(engine, request(new=2000))) for _ in range(3)]
    while not (await engine.stats())["running"]:
        await asyncio.sleep(0)
    await engine.close()
    await engine.close()
    weights = {"x": torch.ones(1)}
    later = [answer(engine, request()), engine.version(), engine.load_weights(weights, 1, checksum(weights.items()))]
    for call in (*running, *later):
        with pytest.raises(EngineError, match="engine-1 is dead"):
            await asyncio.wait_for(call, 30)


async def test_a_model_that_cannot_be_loaded_is_an_error(config: RunConfig, tmp_path: Path) -> None:
    engine = RayEngine.start(config, tmp_path / "nothing", name="engine-2")
    for waiting in (engine.ready(), answer(engine, request())):
        with pytest.raises(EngineError, match="engine-2 is dead"):
            await asyncio.wait_for(waiting, 60)


async def test_an_engine_whose_host_is_away_is_given_up_and_not_left_waiting_for_it(model: Path) -> None:
    impatient = tiny_config(engine__deadline_s=1.0)
    engine = RayEngine.start(impatient, model, name="engine-3", resources={"host:away": 1})
    with pytest.raises(EngineError, match=r"engine-3\.version did not answer within 1 s \(engine\.deadline_s\)"):
        await engine.ready()
    with pytest.raises(RayActorError):
        await asyncio.wait_for(asyncio.wrap_future(engine._actor.version.remote().future()), 30)
