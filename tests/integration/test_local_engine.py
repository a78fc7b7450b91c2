"""The local engine against plain transformers: exact log-probs, and batching that changes nothing."""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from openclaw_core.engines.local import LocalEngine
from openclaw_core.engines.policy import Policy
from openclaw_core.engines.protocol import (
    EngineError,
    EngineFull,
    GenerateRequest,
    Grammar,
    RequestRefused,
)
from openclaw_core.gateway.rendering import ChatRenderer
from openclaw_core.types import FinishReason, Sampling
from tests.engine_parts import LENGTHS, PROMPTS, Prompt, Start, answer, local_engines, named_weights, request
from tests.models import VOCAB_SIZE, tiny_llama, tiny_qwen3


@pytest.fixture(scope="module", params=[tiny_llama, tiny_qwen3], ids=["llama", "qwen3"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return request.param(tmp_path_factory.mktemp("model"), dtype=torch.float32)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("llama"), dtype=torch.float32)


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    with local_engines() as start:
        yield start


def reference(model: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()


@torch.no_grad()
def full_forward(model: Any, prompt: Prompt, response: Prompt, temperature: float) -> torch.Tensor:
    """Log-probs [T, V] after each prefix of the response by one plain forward pass without cache or padding."""
    logits = model(torch.tensor([[*prompt, *response]])).logits[0, len(prompt) - 1 : -1]
    return torch.log_softmax(logits / temperature, dim=-1)


def record_passes(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Rows and tokens a row of every forward pass from now on; a decode step has one token a row."""
    passes: list[tuple[int, int]] = []
    forward = Policy.next_logits

    def spy(policy: Policy, ids: Any, *rest: Any) -> Any:
        passes.append(tuple(ids.shape))
        return forward(policy, ids, *rest)

    monkeypatch.setattr(Policy, "next_logits", spy)
    return passes


def steps(passes: list[tuple[int, int]]) -> list[int]:
    """Rows of the decode steps."""
    return [rows for rows, tokens in passes if tokens == 1]


async def test_log_probs_are_those_of_a_full_forward_pass(model: Path, start: Start) -> None:
    engine, plain = start(model), reference(model)
    temperatures = (0.3, 0.7, 1.0, 1.7, 0.0, 1.0)
    requests = [
        request(p, temperature=t, new=8 + 3 * i, seed=i, top_logprobs=3)
        for i, (p, t) in enumerate(zip(PROMPTS, temperatures, strict=True))
    ]
    answers = await asyncio.gather(*(answer(engine, one) for one in requests))
    for prompt, temperature, got in zip(PROMPTS, temperatures, answers, strict=True):
        distribution = full_forward(plain, prompt, got.token_ids, temperature or 1.0)
        expected = distribution.gather(1, torch.tensor(got.token_ids)[:, None])[:, 0]
        torch.testing.assert_close(torch.tensor(got.logprobs), expected, atol=1e-4, rtol=0)
        again = await engine.prefill_logprobs(prompt, got.token_ids, temperature)
        torch.testing.assert_close(torch.tensor(again), expected, atol=1e-4, rtol=0)
        best = distribution.topk(3)
        for position, alternatives in enumerate(top for piece in got.pieces for top in piece.top_logprobs):
            ids, logprobs = zip(*alternatives, strict=True)
            assert list(ids) == best.indices[position].tolist()
            assert list(logprobs) == pytest.approx(best.values[position].tolist(), abs=1e-4)


async def test_greedy_answers_are_those_of_transformers_generate(model: Path, start: Start) -> None:
    engine, plain = start(model), reference(model)
    answers = await asyncio.gather(*(answer(engine, request(prompt, temperature=0.0, new=20)) for prompt in PROMPTS))
    for prompt, got in zip(PROMPTS, answers, strict=True):
        ids = torch.tensor([prompt])
        own = plain.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=20, do_sample=False, eos_token_id=2, pad_token_id=0
        )
        assert list(got.token_ids) == own[0, len(prompt) :].tolist()


async def test_a_seeded_answer_does_not_depend_on_its_batch(model: Path, start: Start) -> None:
    engine = start(model)
    requests = [request(prompt, new=5 * (i + 1), seed=i) for i, prompt in enumerate(PROMPTS)]  # rows end one by one
    alone = [await answer(engine, one) for one in requests]
    together = await asyncio.gather(*(answer(engine, one) for one in requests))
    assert [got.token_ids for got in together] == [got.token_ids for got in alone]
    for one, other in zip(alone, together, strict=True):
        assert other.logprobs == pytest.approx(one.logprobs, abs=1e-4)


async def test_a_request_admitted_between_decode_steps_gets_the_tokens_it_gets_alone(
    model: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = start(model)
    requests = [request(prompt, temperature=0.0, new=70 - 11 * i, stop=()) for i, prompt in enumerate(PROMPTS)]
    alone = [await answer(engine, one) for one in requests]
    passes = record_passes(monkeypatch)
    running = engine.generate(requests[0])
    first = [await anext(running) for _ in range(5)]
    late = [asyncio.create_task(answer(engine, one)) for one in requests[1:]]
    first += [piece async for piece in running]
    together = [tuple(token for piece in first for token in piece.token_ids), *[(await got).token_ids for got in late]]
    assert together == [got.token_ids for got in alone]
    assert max(steps(passes)) == len(PROMPTS)
    assert len(steps(passes)) < 80  # the first one's 69 and little more: nobody waited for it


async def test_shaped_answers_report_log_probs_after_the_penalty(llama: Path, start: Start) -> None:
    engine, plain = start(llama), reference(llama)
    prompt = PROMPTS[3]
    got = await answer(engine, request(prompt, temperature=0.7, new=24, seed=1, repetition_penalty=1.3, top_p=0.9, stop=()))
    with torch.no_grad():
        logits = plain(torch.tensor([[*prompt, *got.token_ids]])).logits[0, len(prompt) - 1 : -1]
    for position, token in enumerate(got.token_ids):
        row = logits[position].clone()
        seen = sorted(set(got.token_ids[:position]))
        row[seen] = torch.where(row[seen] > 0, row[seen] / 1.3, row[seen] * 1.3)
        assert got.logprobs[position] == pytest.approx(torch.log_softmax(row / 0.7, dim=0)[token].item(), abs=1e-4)


async def test_an_answer_ends_with_the_stop_token_or_at_its_length(llama: Path, start: Start) -> None:
    engine = start(llama)
    free = await answer(engine, request(PROMPTS[2], temperature=0.0, new=9, stop=()))
    assert [piece.finish_reason for piece in free.pieces] == [None] * 8 + [FinishReason.LENGTH]
    stop = free.token_ids[4]
    stopped = await answer(engine, request(PROMPTS[2], temperature=0.0, new=9, stop=(stop,)))
    end = free.token_ids.index(stop) + 1
    assert (stopped.token_ids, stopped.finish_reason) == (free.token_ids[:end], FinishReason.STOP)
    assert len(stopped.logprobs) == end


async def test_concurrent_requests_share_forward_passes_up_to_max_batch(
    llama: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, passes = start(llama, max_batch=4), record_passes(monkeypatch)
    await asyncio.gather(*(answer(engine, request(prompt, new=3, stop=())) for prompt in PROMPTS))
    assert steps(passes) == [4, 4, 2, 2]


async def test_finished_rows_are_answered_at_once_and_leave_the_batch(
    llama: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, passes = start(llama), record_passes(monkeypatch)
    long = asyncio.create_task(answer(engine, request(PROMPTS[0], new=120, stop=())))
    short = asyncio.create_task(answer(engine, request(PROMPTS[1], new=2, stop=())))
    done, _ = await asyncio.wait({long, short}, return_when=asyncio.FIRST_COMPLETED)
    assert done == {short}
    assert len((await long).token_ids) == 120
    assert steps(passes) == [2] + [1] * 118


async def test_prompts_of_very_different_lengths_are_not_padded_to_the_longest(
    llama: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, passes = start(llama), record_passes(monkeypatch)
    await asyncio.gather(*(answer(engine, request(prompt, new=1)) for prompt in PROMPTS))
    computed, needed = sum(rows * tokens for rows, tokens in passes), sum(LENGTHS)
    assert needed <= computed < 1.3 * needed


async def test_a_request_waits_while_the_cache_would_become_too_large(
    llama: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, passes = start(llama, cache_tokens=3 * 20), record_passes(monkeypatch)
    short = [request(PROMPTS[2], new=13, stop=())] * 4  # 20 columns each
    long = request(PROMPTS[3], new=45, stop=())  # 65 columns: more than there are, so it runs alone
    await asyncio.gather(*(answer(engine, one) for one in (*short, long)))
    assert steps(passes) == [3] * 12 + [1] * 12 + [1] * 44


async def test_closing_the_iterator_frees_the_place(llama: Path, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, passes = start(llama, max_batch=1), record_passes(monkeypatch)
    running, waiting = (engine.generate(request(PROMPTS[i], new=1000, stop=())) for i in (0, 1))
    await anext(running)
    queued = asyncio.create_task(anext(waiting))
    wanted = asyncio.create_task(answer(engine, request(PROMPTS[2], new=10, stop=())))
    await asyncio.sleep(0)
    assert {name: engine.stats()[name] for name in ("running", "waiting")} == {"running": 1, "waiting": 2}
    queued.cancel()
    await running.aclose()
    assert len((await wanted).token_ids) == 10
    assert len(passes) < 40  # neither of the 1,000 tokens were sampled
    assert {name: engine.stats()[name] for name in ("running", "waiting")} == {"running": 0, "waiting": 0}


async def test_a_full_queue_refuses_until_there_is_room(llama: Path, start: Start) -> None:
    engine = start(llama, max_batch=1, max_queue=1)
    running, waiting = (engine.generate(request(PROMPTS[i], new=1000, stop=())) for i in (0, 1))
    await anext(running)
    queued = asyncio.create_task(anext(waiting))
    await asyncio.sleep(0)
    with pytest.raises(EngineFull, match=r"1 requests run and 1 wait \(engine\.max_queue=1\)"):
        await answer(engine, request(PROMPTS[2]))
    await running.aclose()
    await queued  # the other one has the place now
    after = asyncio.create_task(answer(engine, request(PROMPTS[2], new=3, stop=())))
    await asyncio.sleep(0)
    await waiting.aclose()
    assert len((await after).token_ids) == 3


@pytest.mark.parametrize(
    ("prompt", "new", "message"),
    [
        ((), 4, "no token ids"),
        ((5,) * 60, 5, "60 ids and 5 more do not fit into the engine's context of 64"),
        ((5, VOCAB_SIZE), 4, f"5 to {VOCAB_SIZE} are outside the vocabulary of {VOCAB_SIZE}"),
        ((-1, 5), 4, "-1 to 5 are outside"),
    ],
)
async def test_ids_that_cannot_be_taken_are_refused(llama: Path, start: Start, prompt: Prompt, new: int, message: str) -> None:
    engine = start(llama, context_length=64)
    with pytest.raises(RequestRefused, match=message):
        await answer(engine, request(prompt, new=new))
    with pytest.raises(RequestRefused, match=message):
        await engine.prefill_logprobs(prompt, (5,) * new, 1.0)
    assert (await answer(engine, request((5,) * 60, new=4))).token_ids


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"sampling": Sampling(1.0, 0)}, "max_new_tokens is 0"),
        ({"continued": 4}, "continued is 4 of 3 ids"),
        ({"top_logprobs": VOCAB_SIZE + 1}, f"top_logprobs is {VOCAB_SIZE + 1}; allowed: 0 to {VOCAB_SIZE}"),
        ({"grammar": Grammar("regex", "a+")}, "knows no grammars, and r has a regex"),
    ],
)
async def test_what_cannot_be_honoured_is_refused(llama: Path, start: Start, wrong: dict[str, Any], message: str) -> None:
    fields = {"request_id": "r", "input_ids": PROMPTS[1], "sampling": Sampling(1.0, 4), "stop_token_ids": ()} | wrong
    with pytest.raises(RequestRefused, match=message):
        await answer(start(llama), GenerateRequest(**fields))


async def test_a_failing_batch_fails_its_requests_but_not_the_engine(
    llama: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = start(llama)

    def out_of_memory(*_: Any) -> Any:
        raise RuntimeError("not enough memory: you tried to allocate 1 PB")

    with monkeypatch.context() as broken:
        broken.setattr(Policy, "next_logits", out_of_memory)
        outcomes = await asyncio.gather(*(answer(engine, request(prompt)) for prompt in PROMPTS), return_exceptions=True)
    assert all(isinstance(outcome, EngineError) and "1 PB" in str(outcome) for outcome in outcomes)
    assert (await answer(engine, request(PROMPTS[0]))).token_ids


async def test_closing_the_engine_ends_what_runs(llama: Path, start: Start) -> None:
    engine = start(llama)
    running = engine.generate(request(PROMPTS[0], new=1000, stop=()))
    await anext(running)
    engine.close()
    with pytest.raises(EngineError, match="was closed"):
        async for _ in running:
            pass
    with pytest.raises(EngineError, match="is closed"):
        await answer(engine, request(PROMPTS[0]))


def test_the_head_of_a_bf16_model_is_exact_to_fp32(tmp_path: Path) -> None:
    policy = Policy(tiny_llama(tmp_path, dtype=torch.bfloat16), "bf16")
    hidden = torch.randn(16, 64, generator=torch.Generator().manual_seed(0)).bfloat16()
    exact = (hidden.double() @ named_weights(tmp_path, torch.float64)["model.embed_tokens.weight"].T).float()
    torch.testing.assert_close(policy._logits(hidden), exact, atol=1e-5, rtol=1e-5)
    assert not torch.equal(exact, exact.bfloat16().float())  # rounding would be seen
    left = torch.randn(64, 64)  # fp32 products elsewhere are what they were
    torch.testing.assert_close(left @ left.T, (left.double() @ left.double().T).float(), atol=1e-4, rtol=1e-5)


def test_an_unknown_dtype_is_refused(llama: Path) -> None:
    with pytest.raises(EngineError, match="'int4' is not one of bf16, fp32"):
        LocalEngine(llama, dtype="int4")


def test_a_context_beyond_the_models_is_refused(llama: Path) -> None:
    with pytest.raises(EngineError, match="a context of 4096 is over the 2048 of the model in"):
        LocalEngine(llama, context_length=4096)


@pytest.mark.model
async def test_smollm2_in_bf16_answers_and_stays_close_to_its_own_prefill(smollm2: Path, start: Start) -> None:
    engine, renderer = start(smollm2, dtype="bf16", threads=2), ChatRenderer.from_pretrained(smollm2)
    prompt = renderer.render([{"role": "user", "content": "What is the capital of France?"}]).prompt_ids
    greedy = await answer(engine, request(prompt, temperature=0.0, new=24, stop=renderer.stop_token_ids))
    assert "Paris" in renderer.parse(greedy.token_ids, prompt).text
    requests = [request(prompt, temperature=0.7, new=32, seed=seed, stop=renderer.stop_token_ids) for seed in range(4)]
    differences: list[float] = []
    for got in await asyncio.gather(*(answer(engine, one) for one in requests)):
        again = await engine.prefill_logprobs(prompt, got.token_ids, 0.7)
        differences += [abs(one - other) for one, other in zip(got.logprobs, again, strict=True)]
    assert statistics.mean(differences) < 0.1
