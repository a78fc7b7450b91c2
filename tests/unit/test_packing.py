"""Micro-batches: rows point at the hidden states that predict the response tokens."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from openclaw_core.trainer.packing import micro_batches, pack, padding_share
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


LENGTHS = st.lists(st.tuples(st.integers(1, 9), st.integers(1, 7)), min_size=1, max_size=6)


@given(LENGTHS)
def test_the_hidden_state_of_a_row_sits_right_before_its_target(lengths: list[tuple[int, int]]) -> None:
    sequences = [(list(range(1, p + 1)), list(range(100, 100 + t))) for p, t in lengths]
    packed = pack(sequences)
    # Hidden states are [s, b, H]; put into each the token of its own position, as the model would see it.
    seen = packed.ids.t().reshape(-1)[packed.rows]
    before = [token for prompt, response in sequences for token in (prompt + response)[len(prompt) - 1 : -1]]
    assert seen.tolist() == before


@given(LENGTHS, st.integers(1, 4))
def test_every_sample_is_in_exactly_one_micro_batch_with_its_own_values(lengths: list[tuple[int, int]], size: int) -> None:
    samples = [make_sample(str(i), p, t) for i, (p, t) in enumerate(lengths)]
    batches = micro_batches(samples, size)
    assert sorted(s.sample_id for batch in batches for s in batch.samples) == sorted(s.sample_id for s in samples)
    for batch in batches:
        assert len(batch.samples) <= size
        for i, sample in enumerate(batch.samples):
            own = batch.sample_index == i
            assert batch.targets[own].tolist() == list(sample.response_ids)
            assert torch.allclose(batch.rollout_logp[own], torch.tensor(sample.rollout_logprobs))
            assert batch.temperature[own].unique().tolist() == [sample.temperature]


def test_padding_share_is_what_is_not_a_token() -> None:
    assert padding_share(micro_batches([make_sample("a", 1, 1), make_sample("b", 3, 1)], 2)) == 2 / 8
