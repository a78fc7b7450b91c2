"""Micro-batches: rows point at the hidden states that predict the response tokens, and no batch is over its limit."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from openclaw_core.trainer.packing import MicroBatch, chunks_by_tokens, micro_batches, pack
from openclaw_core.types import Sample


def make_sample(name: str, prompt: int, response: int) -> Sample:
    return Sample(
        sample_id=name,
        session_id="s",
        prompt_ids=tuple(range(1, prompt + 1)),
        response_ids=tuple(range(100, 100 + response)),
        rollout_logprobs=tuple(-0.01 * t for t in range(response)),
        loss_mask=(1,) * response,
        reward=1.0,
        teacher_prompt_ids=(),
        hints=(),
        temperature=0.5 + prompt,
        shaped=False,
        weight_version=0,
        truncated=False,
    )


def size(sample: Sample) -> int:
    return len(sample.prompt_ids) + len(sample.response_ids)


LENGTHS = st.lists(st.tuples(st.integers(1, 9), st.integers(1, 7)), min_size=1, max_size=12)


@given(LENGTHS, st.integers(1, 4))
def test_the_hidden_state_of_a_row_sits_right_before_its_target(lengths: list[tuple[int, int]], multiple: int) -> None:
    sequences = [(list(range(1, p + 1)), list(range(100, 100 + t))) for p, t in lengths]
    packed = pack(sequences, multiple)
    assert packed.ids.shape[1] % multiple == 0
    # Hidden states are [s, b, H]; put into each the token of its own position, as the model would see it.
    seen = packed.ids.t().reshape(-1)[packed.rows]
    before = [token for prompt, response in sequences for token in (prompt + response)[len(prompt) - 1 : -1]]
    assert seen.tolist() == before


@given(LENGTHS)
def test_rows_carry_the_values_of_their_own_sample(lengths: list[tuple[int, int]]) -> None:
    samples = [make_sample(str(i), p, t) for i, (p, t) in enumerate(lengths)]
    batch = MicroBatch.of(samples)
    for i, sample in enumerate(samples):
        own = batch.sample_index == i
        assert batch.targets[own].tolist() == list(sample.response_ids)
        assert torch.allclose(batch.rollout_logp[own], torch.tensor(sample.rollout_logprobs))
        assert batch.temperature[own].unique().tolist() == [sample.temperature]


@given(LENGTHS, st.integers(1, 60), st.integers(1, 5))
def test_every_sample_is_in_one_micro_batch_within_the_limit_and_ranks_get_as_many(
    lengths: list[tuple[int, int]], max_tokens: int, ranks: int
) -> None:
    samples = [make_sample(str(i), p, t) for i, (p, t) in enumerate(lengths)]
    plan = micro_batches(samples, max_tokens, ranks)
    assert len(plan) == ranks
    assert len({len(own) for own in plan}) == 1
    groups = [group for own in plan for group in own]
    assert sorted(s.sample_id for group in groups for s in group) == sorted(s.sample_id for s in samples)
    for group in groups:
        assert len(group) <= 1 or len(group) * max(map(size, group)) <= max_tokens
    assert len(samples) < ranks or all(any(own) for own in plan)


def test_samples_of_like_length_come_together_so_that_padding_is_small() -> None:
    samples = [make_sample(str(i), length, 1) for i, length in enumerate([1, 99, 1, 99, 1, 99, 1, 99])]
    (own,) = micro_batches(samples, 400)
    assert sorted(sorted(size(s) for s in group) for group in own) == [[2, 2, 2, 2], [100, 100, 100, 100]]


def test_a_sample_over_the_limit_is_alone() -> None:
    samples = [make_sample("short", 2, 1), make_sample("long", 30, 1), make_sample("also short", 2, 1)]
    assert [[s.sample_id for s in group] for group in micro_batches(samples, 10)[0]] == [["short", "also short"], ["long"]]


@given(st.lists(st.integers(1, 20), max_size=12), st.integers(1, 40))
def test_chunks_keep_order_and_limit(lengths: list[int], max_tokens: int) -> None:
    chunks = chunks_by_tokens(lengths, max_tokens)
    assert [i for chunk in chunks for i in chunk] == list(range(len(lengths)))
    for chunk in chunks:
        assert len(chunk) == 1 or len(chunk) * max(lengths[i] for i in chunk) <= max_tokens
