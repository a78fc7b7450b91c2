"""GRPO, Top-K distillation and reference KL on the packed response rows of one micro-batch (ALGORITHM 8)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from openclaw_core.losses.config import LossConfig
from openclaw_core.losses.errors import LossError
from openclaw_core.losses.grpo import GrpoInputs, grpo_loss, importance_weight
from openclaw_core.losses.metrics import Sums, masked_sum
from openclaw_core.losses.reference_kl import ReferenceKlInputs, reference_kl
from openclaw_core.losses.topk_opd import OpdInputs, OpdTargets, opd_loss, opd_targets


@dataclass(frozen=True, slots=True)
class HybridInputs:
    """n response tokens of any number of samples. Only ``cur_logp``, here and in ``opd``, carries a gradient.

    Rows that are masked may hold anything.
    """

    cur_logp: Float[Tensor, " n"]
    """ell_cur(y_t)"""
    old_logp: Float[Tensor, " n"]
    """ell_old(y_t); with one optimiser step per rollout the detached ``cur_logp`` (ALGORITHM 12)."""
    rollout_logp: Float[Tensor, " n"]
    """log mu(y_t)"""
    advantage: Float[Tensor, " n"]
    entropy: Float[Tensor, " n"]
    """H_t, for its metric."""
    mask: Bool[Tensor, " n"]
    """Tokens that are trained on."""
    weight: Float[Tensor, " n"]
    """Of ``token_weights``."""
    shaped: Bool[Tensor, " n"]
    """Tokens of shaped turns."""
    ref_logp: Float[Tensor, " n"] | None = None
    """ell_ref(y_t); needed with kl_coef > 0."""
    opd: OpdInputs | None = None
    """Needed with w_opd > 0."""


@dataclass(frozen=True, slots=True)
class HybridOutput:
    """One micro-batch's share: over all micro-batches and ranks, ``loss`` adds up to L and ``sums`` to those of the batch."""

    loss: Float[Tensor, ""]
    sums: Sums
    importance: Float[Tensor, " n"]
    """c_t; 1 where nothing is corrected."""
    rewarded: Bool[Tensor, " n"]
    """Tokens with a GRPO term."""
    opd: OpdTargets | None
    """None where nothing is distilled."""


def hybrid_loss(inputs: HybridInputs, config: LossConfig) -> HybridOutput:
    """sum_t weight_t (w_rl L^GRPO_t + w_opd L^OPD_t + kl_coef L^KL_t) and the sums of the metrics.

    Raises LossError where an input that a term needs is absent or has another shape, or where a detached value that counts
    is not finite. A non-finite ``cur_logp`` passes into the loss: the optimiser's guard deals with it (ALGORITHM 11).
    """
    _check(inputs, config)
    policy = inputs.mask & ~inputs.shaped if config.shaped_turns == "opd_only" else inputs.mask
    corrected = policy & ~inputs.shaped if config.shaped_turns == "plain" else policy
    importance, sums = importance_weight(inputs.old_logp, inputs.rollout_logp, corrected, config)
    sums |= _token_sums(inputs)

    targets = None
    terms: list[tuple[str, float, tuple[Tensor, Sums]]] = []
    if config.w_rl > 0:
        grpo = GrpoInputs(inputs.cur_logp, inputs.old_logp, inputs.advantage, importance)
        terms.append(("grpo_loss", config.w_rl, grpo_loss(grpo, policy, config)))
    if config.w_opd > 0 and inputs.opd is not None:
        targets = opd_targets(inputs.opd, inputs.mask & inputs.opd.has_hint, config)
        terms.append(("opd_loss", config.w_opd, opd_loss(inputs.opd, targets, config)))
    if config.kl_coef > 0 and inputs.ref_logp is not None:
        kl = ReferenceKlInputs(inputs.cur_logp, inputs.ref_logp, importance)
        terms.append(("kl", config.kl_coef, reference_kl(kl, policy)))

    loss = inputs.cur_logp.new_zeros(())
    weight = inputs.weight.where(inputs.mask, 0)
    for name, coefficient, (per_token, term_sums) in terms:
        total = (weight * per_token).sum()
        loss = loss + coefficient * total
        sums |= term_sums | {name: total.detach()}
    rewarded = policy if config.w_rl > 0 else torch.zeros_like(policy)
    return HybridOutput(loss, sums, importance, rewarded, targets)


def _token_sums(inputs: HybridInputs) -> Sums:
    shaped, unshaped = inputs.mask & inputs.shaped, inputs.mask & ~inputs.shaped
    gap = (inputs.old_logp - inputs.rollout_logp).abs()
    return {
        "tokens": inputs.mask.sum(),
        "shaped_tokens": shaped.sum(),
        "unshaped_tokens": unshaped.sum(),
        "entropy": masked_sum(inputs.entropy, inputs.mask),
        "ppo_kl": masked_sum(inputs.old_logp - inputs.cur_logp, inputs.mask),
        "logprob_diff_shaped": masked_sum(gap, shaped),
        "logprob_diff_unshaped": masked_sum(gap, unshaped),
    }


def _check(inputs: HybridInputs, config: LossConfig) -> None:
    """The guard at the door: presence, shapes, and finiteness of what counts."""
    n = inputs.mask.shape[0]
    scores = {"old_logp": inputs.old_logp, "rollout_logp": inputs.rollout_logp, "advantage": inputs.advantage}
    scores |= {"entropy": inputs.entropy, "weight": inputs.weight}
    if config.kl_coef > 0:
        if inputs.ref_logp is None:
            raise LossError(f"kl_coef={config.kl_coef} needs ref_logp; run the reference pass or set kl_coef to 0")
        scores["ref_logp"] = inputs.ref_logp
    flags = {"mask": inputs.mask, "shaped": inputs.shaped}
    _check_shapes({"cur_logp": inputs.cur_logp} | scores | flags, (n,))
    _check_flags(flags)
    _check_finite(scores, inputs.mask)
    if config.w_opd > 0:
        if inputs.opd is None:
            raise LossError(f"w_opd={config.w_opd} needs the opd inputs; run the teacher pass or set w_opd to 0")
        _check_opd(inputs.opd, inputs.mask)


def _check_opd(opd: OpdInputs, mask: Tensor) -> None:
    scores = {
        "opd.old_logp": opd.old_logp,
        "opd.teacher_logp": opd.teacher_logp,
        "opd.teacher_old_logp": opd.teacher_old_logp,
    }
    flags = {"opd.support": opd.support, "opd.has_hint": opd.has_hint}
    _check_shapes({"opd.has_hint": opd.has_hint, "opd.hint": opd.hint, "opd.overlap": opd.overlap}, mask.shape)
    _check_shapes({"opd.cur_logp": opd.cur_logp, "opd.support": opd.support} | scores, (*mask.shape, opd.support.shape[-1]))
    _check_flags(flags)
    _check_finite(scores, (mask & opd.has_hint)[:, None] & opd.support)


def _check_shapes(values: dict[str, Tensor], shape: tuple[int, ...]) -> None:
    for name, value in values.items():
        if value.shape != shape:
            raise LossError(f"{name} has shape {tuple(value.shape)}; expected {tuple(shape)}")


def _check_flags(flags: dict[str, Tensor]) -> None:
    for name, flag in flags.items():
        if flag.dtype != torch.bool:
            raise LossError(f"{name} is {flag.dtype}; expected torch.bool")


def _check_finite(scores: dict[str, Tensor], counts: Tensor) -> None:
    for name, score in scores.items():
        bad = counts & ~score.isfinite()
        if bool(bad.any()):
            row = int(bad.nonzero()[0, 0])
            raise LossError(
                f"{name} has {int(bad.sum())} non-finite value(s) that count, the first in row {row}; a sample with a missing "
                "or non-finite score must be dropped before the loss"
            )
