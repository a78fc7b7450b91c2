"""The clipped policy-gradient surrogate that GRPO and OPD share (ALGORITHM 5 and 6)."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from openclaw_core.losses.config import LossConfig

MAX_LOG_RATIO = 20.0
"""Nats. exp of it is finite in fp32 with room for sums; clip acts long before."""


def clipped_surrogate(
    log_ratio: Float[Tensor, "*n"], advantage: Float[Tensor, "*#n"], config: LossConfig
) -> tuple[Float[Tensor, "*n"], Bool[Tensor, "*n"]]:
    """max(-A rho, -A clip(rho)), and where the clipped branch is strictly larger, that is where no gradient flows."""
    ratio = bounded_exp(log_ratio)
    plain = -advantage * ratio
    clipped = -advantage * ratio.clamp(1 - config.eps_lo, 1 + config.eps_hi)
    return torch.maximum(plain, clipped), (clipped > plain).detach()


def bounded_exp(log_ratio: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
    """exp of a log-ratio clamped to +-MAX_LOG_RATIO."""
    return log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
