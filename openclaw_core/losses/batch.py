"""What a sample's tokens count in the global batch, and which samples do not count (ALGORITHM 6 and 8).

Rows are the response tokens of a micro-batch, packed one sample after another; ``sample_index`` [n] says whose each is.
A sample is never split over two calls.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from openclaw_core.losses.errors import LossError


def token_weights(
    mask: Bool[Tensor, " n"], sample_index: Int[Tensor, " n"], *, global_samples: int, dtype: torch.dtype = torch.float32
) -> Float[Tensor, " n"]:
    """mask / (N max(1, sum_t mask)) with N = ``global_samples``, the samples of the whole batch over all ranks."""
    if global_samples < 1:
        raise LossError(f"global_samples={global_samples}: it is the number of samples in the global batch, at least 1")
    ones = mask.to(dtype)
    tokens = torch.bincount(sample_index, weights=ones).clamp(min=1).to(dtype)
    return ones / (global_samples * tokens[sample_index])


def mask_mismatch(
    old_logp: Float[Tensor, " n"],
    rollout_logp: Float[Tensor, " n"],
    mask: Bool[Tensor, " n"],
    sample_index: Int[Tensor, " n"],
    *,
    samples: int,
    max_logprob_diff: float,
) -> Bool[Tensor, " samples"]:
    """Which of ``samples`` have a mean |ell_old - log mu| over the bound: to be masked, yet counted in N.

    ``mask & ~mismatch[sample_index]`` masks them.
    """
    gap = (old_logp.detach() - rollout_logp).abs().where(mask, 0)
    total = torch.bincount(sample_index, weights=gap, minlength=samples)
    tokens = torch.bincount(sample_index, weights=mask.to(gap.dtype), minlength=samples)
    return total > max_logprob_diff * tokens
