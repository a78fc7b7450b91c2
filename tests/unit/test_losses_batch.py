"""Token weights, the mismatch guard and the finishing of metrics."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from openclaw_core.losses import LossError, add_sums, finish_metrics, mask_mismatch, token_weights

unhurried = settings(deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow])
"""The cores are shared: how long an example takes says nothing about the code."""

masks = st.lists(st.lists(st.booleans(), min_size=1, max_size=6), min_size=1, max_size=5)


def packed(samples: list[list[bool]]) -> tuple[torch.Tensor, torch.Tensor]:
    mask = torch.tensor([m for sample in samples for m in sample])
    return mask, torch.tensor([i for i, sample in enumerate(samples) for _ in sample])


@unhurried
@given(masks, st.integers(0, 5))
def test_each_sample_weighs_one_nth_however_long_it_is(samples: list[list[bool]], elsewhere: int) -> None:
    mask, sample_index = packed(samples)
    n = len(samples) + elsewhere
    weight = token_weights(mask, sample_index, global_samples=n, dtype=torch.float64)
    assert not weight[~mask].any()
    for i, sample in enumerate(samples):
        shares = weight[sample_index == i][torch.tensor(sample)].tolist()
        assert shares == pytest.approx([1 / n / max(1, sum(sample))] * sum(sample))


def test_a_global_batch_without_samples_is_refused() -> None:
    with pytest.raises(LossError, match="global_samples=0"):
        token_weights(torch.ones(1, dtype=torch.bool), torch.zeros(1, dtype=torch.int64), global_samples=0)


def test_no_rows_have_no_weights() -> None:
    empty = torch.zeros(0, dtype=torch.int64)
    assert token_weights(empty.bool(), empty, global_samples=3).shape == (0,)


def test_a_sample_is_masked_by_its_mean_gap_over_unmasked_tokens() -> None:
    mask, sample_index = packed([[True, True], [True, True, False], [False], [True]])
    gaps = torch.tensor([0.9, 1.05, 0.1, 2.1, 0.0, 99.0, -1.5])
    rollout = torch.full_like(gaps, -2.0)
    bad = mask_mismatch(rollout + gaps, rollout, mask, sample_index, samples=5, max_logprob_diff=1.0)
    assert bad.tolist() == [False, True, False, True, False]


@unhurried
@given(masks, st.data())
def test_masking_mismatches_keeps_the_other_samples_weights(samples: list[list[bool]], data: st.DataObject) -> None:
    mask, sample_index = packed(samples)
    gaps = torch.tensor(data.draw(st.lists(st.sampled_from([0.5, 1.5]), min_size=len(mask), max_size=len(mask))))
    bad = mask_mismatch(gaps, torch.zeros_like(gaps), mask, sample_index, samples=len(samples), max_logprob_diff=1.0)
    before = token_weights(mask, sample_index, global_samples=len(samples))
    after = token_weights(mask & ~bad[sample_index], sample_index, global_samples=len(samples))
    assert torch.equal(after, before.where(~bad[sample_index], 0))


SUMS = {name: torch.tensor(value) for name, value in {"tokens": 4, "entropy": 2.0, "ppo_kl": 1.0, "shaped_tokens": 0}.items()}


def test_a_metric_without_anything_counted_is_none() -> None:
    metrics = finish_metrics(SUMS, single_step=False)
    assert metrics["entropy"] == 0.5 and metrics["ppo_kl"] == 0.25
    assert {name for name, value in metrics.items() if value is not None} == {"entropy", "ppo_kl"}


def test_clip_fractions_and_ppo_kl_are_none_with_one_optimiser_step() -> None:
    sums = SUMS | {name: torch.tensor(1.0) for name in ("grpo_tokens", "grpo_clipped", "grpo_loss")}
    sums |= {
        name: torch.tensor(1.0)
        for name in ("opd_tokens", "opd_pairs", "opd_clipped", "opd_abs", "overlap", "c_star", "opd_loss")
    }
    several, single = finish_metrics(sums, single_step=False), finish_metrics(sums, single_step=True)
    changed = {name for name in several if several[name] != single[name]}
    assert changed == {"ppo_kl", "grpo_clipfrac", "opd_clipfrac"}
    assert all(single[name] is None for name in changed)


def test_sums_add_up_by_name() -> None:
    total = add_sums([SUMS, SUMS, {"tokens": torch.tensor(1)}])
    assert int(total["tokens"]) == 9 and float(total["entropy"]) == 4.0
    assert add_sums([]) == {}
