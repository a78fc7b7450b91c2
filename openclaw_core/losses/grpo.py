"""The GRPO term and the weight that corrects for the engine's own distribution (ALGORITHM 6)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from openclaw_core.losses.config import LossConfig
from openclaw_core.losses.metrics import Sums, masked_sum
from openclaw_core.losses.surrogate import bounded_exp, clipped_surrogate


@dataclass(frozen=True, slots=True)
class GrpoInputs:
    """Sampled tokens y_t. Only ``cur_logp`` carries a gradient."""

    cur_logp: Float[Tensor, " n"]
    old_logp: Float[Tensor, " n"]
    advantage: Float[Tensor, " n"]
    importance: Float[Tensor, " n"]
    """c_t"""


def grpo_loss(inputs: GrpoInputs, rows: Bool[Tensor, " n"], config: LossConfig) -> tuple[Float[Tensor, " n"], Sums]:
    """L^GRPO_t = c_t max(-A rho_t, -A clip(rho_t)) on ``rows``, 0 elsewhere, and the sums of its metrics."""
    # where before exp: 0 * inf of a row that does not count would be a NaN in the gradient.
    log_ratio = torch.where(rows, inputs.cur_logp - inputs.old_logp.detach(), 0)
    surrogate, clipped = clipped_surrogate(log_ratio, torch.where(rows, inputs.advantage, 0), config)
    return inputs.importance * surrogate, {"grpo_tokens": rows.sum(), "grpo_clipped": clipped.sum()}


def importance_weight(
    old_logp: Float[Tensor, " n"], rollout_logp: Float[Tensor, " n"], rows: Bool[Tensor, " n"], config: LossConfig
) -> tuple[Float[Tensor, " n"], Sums]:
    """c_t = min(pi_old(y_t) / mu(y_t), C_tis) on ``rows``, 1 elsewhere and with ``tis_clip`` 0; detached."""
    if config.tis_clip == 0:
        rows = torch.zeros_like(rows)
    ratio = bounded_exp(torch.where(rows, old_logp.detach() - rollout_logp, 0))
    weight = torch.where(rows, ratio.clamp(max=config.tis_clip), 1)
    sums = {
        "tis_tokens": rows.sum(),
        "tis": masked_sum(weight, rows),
        "tis_clipped": (rows & (ratio >= config.tis_clip)).sum(),
    }
    return weight, sums
