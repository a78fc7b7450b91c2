"""The local engine against plain transformers: exact log-probs, batching that changes nothing, weights swapped in place."""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from openclaw_core.engines.arrays import as_arrays, as_tensors
from openclaw_core.engines.local import LocalEngine
from openclaw_core.engines.policy import Policy
from openclaw_core.engines.protocol import EngineError, GenerateRequest, Generation
from openclaw_core.gateway.rendering import ChatRenderer
from openclaw_core.types import FinishReason, Sampling
from openclaw_core.weights.checksum import checksum
from tests.models import VOCAB_SIZE, tiny_llama, tiny_qwen3

Prompt = tuple[int, ...]
STOP = (2,)
LENGTHS = (1, 3, 7, 20, 41, 90)
PROMPTS: list[Prompt] = [tuple((7 * n + 13 * i) % (VOCAB_SIZE - 3) + 3 for i in range(n)) for n in LENGTHS]


@pytest.fixture(scope="module", params=[tiny_llama, tiny_qwen3], ids=["llama", "qwen3"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return request.param(tmp_path_factory.mktemp("model"), dtype=torch.float32)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("llama"), dtype=torch.float32)


@pytest.fixture
async def start() -> AsyncIterator[Callable[..., LocalEngine]]:
    engines: list[LocalEngine] = []

    def start(model: Path, **options: Any) -> LocalEngine:
        engines.append(LocalEngine(model, **({"dtype": "fp32", "threads": 1} | options)))
        return engines[-1]

    yield start
    for engine in engines:
        engine.close()


def request(
    prompt: Prompt, *, temperature: float = 1.0, new: int = 12, stop: Prompt = STOP, **sampling: Any
) -> GenerateRequest:
    return GenerateRequest("r", prompt, Sampling(temperature, new, **sampling), stop)


def reference(model: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()


@torch.no_grad()
def full_forward(model: Any, prompt: Prompt, response: Prompt, temperature: float) -> torch.Tensor:
    """Log-probs [T] of the response by one plain forward pass without cache or padding."""
    logits = model(torch.tensor([[*prompt, *response]])).logits[0, len(prompt) - 1 : -1]
    return torch.log_softmax(logits / temperature, dim=-1).gather(1, torch.tensor(response)[:, None])[:, 0]


def named_weights(model: Path, dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    """A model's weights under their names, tied ones once."""
    return {name: tensor.detach() for name, tensor in reference(model).to(dtype).named_parameters()}


def record_batches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Rows of every forward pass from now on."""
    rows: list[int] = []
    forward = Policy.next_logits

    def spy(policy: Policy, ids: Any, *rest: Any) -> Any:
        rows.append(len(ids))
        return forward(policy, ids, *rest)

    monkeypatch.setattr(Policy, "next_logits", spy)
    return rows


async def test_log_probs_are_those_of_a_full_forward_pass(model: Path, start: Callable[..., LocalEngine]) -> None:
    engine, plain = start(model), reference(model)
    temperatures = (0.3, 0.7, 1.0, 1.7, 0.0, 1.0)
    requests = [
        request(p, temperature=t, new=8 + 3 * i, seed=i) for i, (p, t) in enumerate(zip(PROMPTS, temperatures, strict=True))
    ]
    answers = await asyncio.gather(*map(engine.generate, requests))
    for prompt, temperature, answer in zip(PROMPTS, temperatures, answers, strict=True):
        expected = full_forward(plain, prompt, answer.token_ids, temperature or 1.0)
        torch.testing.assert_close(torch.tensor(answer.logprobs), expected, atol=1e-4, rtol=0)
        again = await engine.prefill_logprobs(prompt, answer.token_ids, temperature)
        torch.testing.assert_close(torch.tensor(again), expected, atol=1e-4, rtol=0)


async def test_greedy_answers_are_those_of_transformers_generate(model: Path, start: Callable[..., LocalEngine]) -> None:
    engine, plain = start(model), reference(model)
    answers = await asyncio.gather(*(engine.generate(request(prompt, temperature=0.0, new=20)) for prompt in PROMPTS))
    for prompt, answer in zip(PROMPTS, answers, strict=True):
        ids = torch.tensor([prompt])
        own = plain.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=20, do_sample=False, eos_token_id=2, pad_token_id=0
        )
        assert list(answer.token_ids) == own[0, len(prompt) :].tolist()


async def test_a_seeded_answer_does_not_depend_on_its_batch(model: Path, start: Callable[..., LocalEngine]) -> None:
    engine = start(model)
    requests = [request(prompt, new=5 * (i + 1), seed=i) for i, prompt in enumerate(PROMPTS)]  # rows end one by one
    alone = [await engine.generate(one) for one in requests]
    together = await asyncio.gather(*map(engine.generate, requests))
    assert [answer.token_ids for answer in together] == [answer.token_ids for answer in alone]
    for one, other in zip(alone, together, strict=True):
        assert other.logprobs == pytest.approx(one.logprobs, abs=1e-4)


async def test_shaped_answers_report_log_probs_after_the_penalty(llama: Path, start: Callable[..., LocalEngine]) -> None:
    engine, plain = start(llama), reference(llama)
    prompt = PROMPTS[3]
    answer = await engine.generate(request(prompt, temperature=0.7, new=24, seed=1, repetition_penalty=1.3, top_p=0.9, stop=()))
    with torch.no_grad():
        logits = plain(torch.tensor([[*prompt, *answer.token_ids]])).logits[0, len(prompt) - 1 : -1]
    for position, token in enumerate(answer.token_ids):
        row = logits[position].clone()
        seen = sorted(set(answer.token_ids[:position]))
        row[seen] = torch.where(row[seen] > 0, row[seen] / 1.3, row[seen] * 1.3)
        assert answer.logprobs[position] == pytest.approx(torch.log_softmax(row / 0.7, dim=0)[token].item(), abs=1e-4)


async def test_an_answer_ends_with_the_stop_token_or_at_its_length(llama: Path, start: Callable[..., LocalEngine]) -> None:
    engine = start(llama)
    free = await engine.generate(request(PROMPTS[2], temperature=0.0, new=9, stop=()))
    assert (len(free.token_ids), free.finish_reason) == (9, FinishReason.LENGTH)
    stop = free.token_ids[4]
    stopped = await engine.generate(request(PROMPTS[2], temperature=0.0, new=9, stop=(stop,)))
    end = free.token_ids.index(stop) + 1
    assert (stopped.token_ids, stopped.finish_reason) == (free.token_ids[:end], FinishReason.STOP)
    assert len(stopped.logprobs) == end


async def test_concurrent_requests_share_forward_passes_up_to_max_batch(
    llama: Path, start: Callable[..., LocalEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, rows = start(llama, max_batch=4), record_batches(monkeypatch)
    await asyncio.gather(*(engine.generate(request(prompt, new=3, stop=())) for prompt in PROMPTS))
    assert rows == [4, 4, 4, 2, 2, 2]


async def test_finished_rows_are_answered_at_once_and_leave_the_batch(
    llama: Path, start: Callable[..., LocalEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, rows = start(llama), record_batches(monkeypatch)
    long = asyncio.create_task(engine.generate(request(PROMPTS[0], new=120, stop=())))
    short = asyncio.create_task(engine.generate(request(PROMPTS[1], new=2, stop=())))
    done, _ = await asyncio.wait({long, short}, return_when=asyncio.FIRST_COMPLETED)
    assert done == {short}
    assert len((await long).token_ids) == 120
    assert rows == [2, 2] + [1] * 118


async def test_a_request_that_comes_while_a_batch_decodes_is_in_the_next_one(
    llama: Path, start: Callable[..., LocalEngine]
) -> None:
    engine = start(llama, batch_window_ms=0)
    first = asyncio.create_task(engine.generate(request(PROMPTS[0], new=60, stop=())))
    await asyncio.sleep(0.02)
    second = await engine.generate(request(PROMPTS[1], new=2, stop=()))
    assert first.done()
    assert len(second.token_ids) == 2


async def test_a_cancelled_request_gives_its_place_up(
    llama: Path, start: Callable[..., LocalEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, rows = start(llama), record_batches(monkeypatch)
    unwanted = asyncio.create_task(engine.generate(request(PROMPTS[0], new=1000, stop=())))
    wanted = asyncio.create_task(engine.generate(request(PROMPTS[1], new=40, stop=())))
    while not rows:
        await asyncio.sleep(0.001)
    late = asyncio.create_task(engine.generate(request(PROMPTS[3], new=50, stop=())))
    await asyncio.sleep(0)
    late.cancel()
    unwanted.cancel()
    assert len((await wanted).token_ids) == 40
    assert (await engine.generate(request(PROMPTS[2], new=3, stop=()))).finish_reason is FinishReason.LENGTH
    assert len(rows) < 60  # neither the 1,000 tokens nor the 50 were sampled


@pytest.mark.parametrize(
    ("prompt", "new", "message"),
    [
        ((), 4, "no token ids"),
        ((5,) * 60, 5, "60 ids and 5 more do not fit into the engine's context of 64"),
        ((5, VOCAB_SIZE), 4, f"5 to {VOCAB_SIZE} are outside the vocabulary of {VOCAB_SIZE}"),
        ((-1, 5), 4, "-1 to 5 are outside"),
    ],
)
async def test_a_request_that_cannot_be_answered_is_refused(
    llama: Path, start: Callable[..., LocalEngine], prompt: Prompt, new: int, message: str
) -> None:
    engine = start(llama, context_length=64)
    with pytest.raises(EngineError, match=message):
        await engine.generate(request(prompt, new=new))
    with pytest.raises(EngineError, match=message):
        await engine.prefill_logprobs(prompt, (5,) * new, 1.0)
    assert (await engine.generate(request((5,) * 60, new=4))).token_ids


async def test_a_failing_batch_fails_its_requests_but_not_the_engine(
    llama: Path, start: Callable[..., LocalEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = start(llama)

    def out_of_memory(*_: Any) -> Any:
        raise RuntimeError("not enough memory: you tried to allocate 1 PB")

    with monkeypatch.context() as broken:
        broken.setattr(Policy, "next_logits", out_of_memory)
        outcomes = await asyncio.gather(*(engine.generate(request(prompt)) for prompt in PROMPTS), return_exceptions=True)
    assert all(isinstance(outcome, EngineError) and "1 PB" in str(outcome) for outcome in outcomes)
    assert (await engine.generate(request(PROMPTS[0]))).token_ids


@pytest.mark.parametrize("form", [dict, as_arrays], ids=["tensors", "arrays"])
@pytest.mark.parametrize("tied", [True, False])
async def test_new_weights_are_served_without_a_restart(
    tmp_path: Path, start: Callable[..., LocalEngine], form: Callable[[Any], Any], tied: bool
) -> None:
    old, new = (tiny_llama(tmp_path / name, seed=seed, tied=tied) for seed, name in enumerate(("old", "new")))
    engine, other = start(old, dtype="bf16"), start(new, dtype="bf16")
    before = await engine.generate(request(PROMPTS[3], temperature=0.0))
    weights = named_weights(new, torch.bfloat16)
    await engine.load_weights(form(weights), 1, checksum(weights.items()))
    after = await engine.generate(request(PROMPTS[3], temperature=0.0))
    expected = await other.generate(request(PROMPTS[3], temperature=0.0))
    assert (before.weight_version, after.weight_version, await engine.version()) == (0, 1, 1)
    assert after.token_ids == expected.token_ids != before.token_ids
    assert after.logprobs == expected.logprobs


async def test_a_running_batch_ends_on_the_weights_it_began_with(
    llama: Path, tmp_path: Path, start: Callable[..., LocalEngine]
) -> None:
    engine, weights = start(llama, batch_window_ms=0), named_weights(tiny_llama(tmp_path, seed=1, dtype=torch.float32))
    alone = await engine.generate(request(PROMPTS[0], new=80, seed=3, stop=()))
    running = asyncio.create_task(engine.generate(request(PROMPTS[0], new=80, seed=3, stop=())))
    await asyncio.sleep(0.02)
    assert not running.done()
    loading = asyncio.create_task(engine.load_weights(weights, 1, checksum(weights.items())))
    answer = await running
    await loading
    assert (answer.weight_version, answer.token_ids) == (0, alone.token_ids)
    assert (await engine.generate(request(PROMPTS[0], new=80, seed=3, stop=()))).weight_version == 1


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
async def test_weights_that_do_not_fit_are_refused_and_the_old_version_goes_on(
    llama: Path, tmp_path: Path, start: Callable[..., LocalEngine], spoil: Callable[[Any], Any], message: str
) -> None:
    engine = start(llama)
    before = await engine.generate(request(PROMPTS[3], seed=1))
    weights = spoil(named_weights(tiny_llama(tmp_path, seed=1, dtype=torch.float32)))
    with pytest.raises(EngineError, match=message):
        await engine.load_weights(weights, 1, checksum(weights.items()))
    assert await engine.generate(request(PROMPTS[3], seed=1)) == before


async def test_a_wrong_checksum_is_refused_and_the_old_version_goes_on(
    llama: Path, tmp_path: Path, start: Callable[..., LocalEngine]
) -> None:
    engine = start(llama)
    before = await engine.generate(request(PROMPTS[3], seed=1))
    weights = named_weights(tiny_llama(tmp_path, seed=1, dtype=torch.float32))
    announced = checksum(weights.items())
    weights["model.norm.weight"] = weights["model.norm.weight"] + 1e-3
    with pytest.raises(EngineError, match=f"version 1 arrived with checksum .*, not {announced}; still serving 0"):
        await engine.load_weights(weights, 1, announced)
    assert await engine.version() == 0
    assert await engine.generate(request(PROMPTS[3], seed=1)) == before


def test_weights_travel_as_arrays_bit_for_bit(llama: Path) -> None:
    weights = named_weights(llama, torch.bfloat16) | {"fp32": torch.randn(3, 2)}
    arrays = as_arrays(weights)
    for array in arrays.values():
        array.flags.writeable = False  # as they come out of Ray's object store
    assert checksum(as_tensors(arrays).items()) == checksum(weights.items())


def test_an_unknown_dtype_is_refused(llama: Path) -> None:
    with pytest.raises(EngineError, match="'int4' is not one of bf16, fp32"):
        LocalEngine(llama, dtype="int4")


def test_a_context_beyond_the_models_is_refused(llama: Path) -> None:
    with pytest.raises(EngineError, match="a context of 4096 is over the 2048 of the model in"):
        LocalEngine(llama, context_length=4096)


@pytest.mark.model
async def test_smollm2_in_bf16_answers_and_stays_close_to_its_own_prefill(
    smollm2: Path, start: Callable[..., LocalEngine]
) -> None:
    engine, renderer = start(smollm2, dtype="bf16", threads=2), ChatRenderer.from_pretrained(smollm2)
    prompt = renderer.render([{"role": "user", "content": "What is the capital of France?"}]).prompt_ids
    greedy = await engine.generate(request(prompt, temperature=0.0, new=24, stop=renderer.stop_token_ids))
    assert "Paris" in renderer.parse(greedy.token_ids, prompt).text
    answers: list[Generation] = await asyncio.gather(
        *(
            engine.generate(request(prompt, temperature=0.7, new=32, seed=seed, stop=renderer.stop_token_ids))
            for seed in range(4)
        )
    )
    differences: list[float] = []
    for answer in answers:
        again = await engine.prefill_logprobs(prompt, answer.token_ids, 0.7)
        differences += [abs(one - other) for one, other in zip(answer.logprobs, again, strict=True)]
    assert statistics.mean(differences) < 0.1
