"""The KL penalty to the start model (ALGORITHM 7)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from openclaw_core.losses.metrics import Sums

MAX_LOG_RATIO = 10.0
"""Nats."""


@dataclass(frozen=True, slots=True)
class ReferenceKlInputs:
    """Sampled tokens y_t. Only ``cur_logp`` carries a gradient."""

    cur_logp: Float[Tensor, " n"]
    ref_logp: Float[Tensor, " n"]
    importance: Float[Tensor, " n"]
    """c_t"""


def reference_kl(inputs: ReferenceKlInputs, rows: Bool[Tensor, " n"]) -> tuple[Float[Tensor, " n"], Sums]:
    """L^KL_t = c_t k3 on ``rows``, 0 elsewhere, with k3 = exp(d) - d - 1 and d = ell_ref - ell_cur (Schulman's estimator)."""
    d = torch.where(rows, inputs.ref_logp.detach() - inputs.cur_logp, 0).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    return inputs.importance * (torch.expm1(d) - d), {"kl_tokens": rows.sum()}
