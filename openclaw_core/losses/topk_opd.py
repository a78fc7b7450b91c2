"""The Top-K on-policy distillation term: an exact sum over the support S_t (ALGORITHM 5)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from openclaw_core.losses.config import LossConfig
from openclaw_core.losses.metrics import Sums, masked_sum
from openclaw_core.losses.surrogate import clipped_surrogate


@dataclass(frozen=True, slots=True)
class OpdInputs:
    """Full-vocabulary log-probs at the K ids of each support. Only ``cur_logp`` carries a gradient.

    Rows of samples without a hint, and ids outside the support, may hold anything.
    """

    cur_logp: Float[Tensor, "n K"]
    old_logp: Float[Tensor, "n K"]
    """ell_old(v) by the trainer, for w and rho."""
    teacher_logp: Float[Tensor, "n K"]
    """ell_T,c*(v)"""
    teacher_old_logp: Float[Tensor, "n K"]
    """ell_old(v) by whoever computed ell_T: the noise of its kernels cancels in delta. The trainer's where that is the same."""
    support: Bool[Tensor, "n K"]
    """Which of the K ids belong to S_t."""
    has_hint: Bool[Tensor, " n"]
    """Tokens of samples with a hint."""
    hint: Int[Tensor, " n"]
    """c*(t), for its metric."""
    overlap: Int[Tensor, " n"]
    """O[c*, t], for its metric."""


@dataclass(frozen=True, slots=True)
class OpdTargets:
    """What the teacher asks of each id of a support; detached, and 0 where nothing is asked."""

    rows: Bool[Tensor, " n"]
    """Tokens that are distilled."""
    valid: Bool[Tensor, "n K"]
    """Ids of their supports."""
    weight: Float[Tensor, "n K"]
    """w_v"""
    delta: Float[Tensor, "n K"]
    """After the clip."""
    advantage: Float[Tensor, "n K"]
    """A_v"""


def opd_targets(inputs: OpdInputs, rows: Bool[Tensor, " n"], config: LossConfig) -> OpdTargets:
    """w, delta and A_v on ``rows``. Log-probs stay those of the full vocabulary; only w is normalised inside S_t."""
    valid = rows[:, None] & inputs.support
    old = inputs.old_logp.detach()
    # The softmax of a row without support is NaN; where makes it 0, and no gradient runs through w.
    w = torch.where(valid, old, -torch.inf).softmax(-1).where(valid, 0)
    delta = torch.where(valid, (inputs.teacher_logp - inputs.teacher_old_logp).detach(), 0)
    if config.adv_diff_clip > 0:
        delta = delta.clamp(-config.adv_diff_clip, config.adv_diff_clip)
    centre = (w * delta).sum(-1, keepdim=True) if config.opd_center else 0
    return OpdTargets(rows, valid, w, delta, w * (delta - centre))


def opd_loss(inputs: OpdInputs, targets: OpdTargets, config: LossConfig) -> tuple[Float[Tensor, " n"], Sums]:
    """L^OPD_t = sum over S_t of max(-A_v rho_v, -A_v clip(rho_v)), and the sums of its metrics. An empty support gives 0."""
    rows, valid = targets.rows, targets.valid
    log_ratio = torch.where(valid, inputs.cur_logp - inputs.old_logp.detach(), 0)
    surrogate, clipped = clipped_surrogate(log_ratio, targets.advantage, config)
    sums = {
        "opd_tokens": rows.sum(),
        "opd_pairs": valid.sum(),
        "opd_clipped": clipped.sum(),
        "opd_abs": (targets.weight * targets.delta.abs()).sum(),
        "overlap": masked_sum(inputs.overlap, rows),
        "c_star": masked_sum(inputs.hint, rows),
    }
    return surrogate.sum(-1), sums
