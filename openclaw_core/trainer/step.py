"""Forward pass and loss of one micro-batch (ALGORITHM 12): the cheap exact forms, and the general one.

With one optimiser step per rollout the training forward *is* the old policy: ell_old, S^q and ell_old(S^q) are taken,
detached, from it. The teacher's numbers come from the trainer's own ranks (colocated) or from a scorer (``scores``).
With several optimiser steps the old policy is a pass of its own before the first one (``before``): the general form.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from openclaw_core.config import schema
from openclaw_core.losses import HybridInputs, LossConfig, OpdInputs, Sums, hybrid_loss, mask_mismatch, token_weights
from openclaw_core.scorer.score import Score
from openclaw_core.scorer.scoring import Distillation, Scorer, unpack, unpack_reference
from openclaw_core.trainer.heads import ResponseHead
from openclaw_core.trainer.optimizer import agreed
from openclaw_core.trainer.packing import MicroBatch
from openclaw_core.trainer.token_table import SampleTokens, sample_tokens
from openclaw_core.types import DropReason, Sample


class NonFiniteForward(ArithmeticError):
    """The policy's own log-probs of a micro-batch are not finite: the step must be skipped (ALGORITHM 11)."""


@dataclass(frozen=True, slots=True)
class MicroBatchResult:
    """``loss`` carries the gradient; ``masked`` says which samples were found unfit, and why."""

    loss: Float[Tensor, ""]
    sums: Sums
    masked: dict[str, DropReason]
    tokens: list[SampleTokens]
    """What the loss saw of every token; empty where nobody wants to know."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """One pass of the policy over a micro-batch, with what the loss compares it to."""

    logp: Float[Tensor, "n 1+K"]
    """At y_t, then at S_t."""
    entropy: Float[Tensor, " n"]
    distillation: Distillation | None
    """None with w_opd = 0."""
    reference: Float[Tensor, " n"] | None
    """ell_ref(y_t); None with kl_coef = 0."""


class HybridStep:
    """The loss of micro-batches under ``model``; ``scorer`` works on the same ranks and weights.

    ``record_tokens``: hand over, for people, what the loss saw of every token. The gradient is the same to the last bit.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        scorer: Scorer,
        head: ResponseHead,
        config: schema.LossConfig,
        *,
        record_tokens: bool = False,
    ) -> None:
        fields = LossConfig.__dataclass_fields__
        self._loss = LossConfig(**{name: value for name, value in config.model_dump().items() if name in fields})
        self._model, self.scorer, self._head, self._config = model, scorer, head, config
        self._record_tokens = record_tokens

    def weigh_opd(self, w_opd: float) -> None:
        """From here on the distillation term has this weight. Not 0 where the configuration's is not: teachers are asked."""
        self._loss = replace(self._loss, w_opd=w_opd)

    def __call__(
        self,
        batch: MicroBatch,
        global_samples: int,
        probe: Mapping[str, tuple[float, ...]],
        *,
        scores: Mapping[str, Score] | None = None,
        before: Evaluation | None = None,
    ) -> MicroBatchResult:
        """Loss and metric sums.

        ``global_samples``: N of the whole batch. ``probe``: log-probs that the engine recomputed, by sample.
        ``scores``: of a scorer elsewhere, else the teacher's passes are made here. ``before``: ``evaluate``'s result from
        before the rollout's first optimiser step; without it this very pass is the old policy.

        Raises NonFiniteForward, on every rank that shares the model or on none.
        """
        now = self._forward(batch, scores, before)
        finite = bool(torch.isfinite(now.logp).all())
        if not agreed(finite, self._head.group, now.logp.device.type):
            raise NonFiniteForward(f"non-finite log-probs in the micro-batch of samples {[s.sample_id for s in batch.samples]}")
        old = now.logp.detach() if before is None else before.logp
        opd = None if now.distillation is None else _opd_inputs(now.distillation, now.logp[:, 1:], old[:, 1:])
        masked = self._unfit(batch, old[:, 0], opd, now.reference)
        mask = batch.mask & ~batch.per_row([s.sample_id in masked for s in batch.samples])
        inputs = HybridInputs(
            cur_logp=now.logp[:, 0],
            old_logp=old[:, 0],
            rollout_logp=batch.rollout_logp,
            advantage=batch.per_row([s.reward - s.baseline for s in batch.samples]),
            entropy=now.entropy,
            mask=mask,
            weight=token_weights(mask, batch.sample_index, global_samples=global_samples),
            shaped=batch.per_row([s.shaped for s in batch.samples]),
            ref_logp=now.reference,
            opd=opd,
        )
        output = hybrid_loss(inputs, self._loss)
        tokens = sample_tokens(batch, inputs, output, now.distillation, masked) if self._record_tokens else []
        return MicroBatchResult(output.loss, output.sums | _parity_sums(batch, old[:, 0], probe), masked, tokens)

    @torch.no_grad()
    def evaluate(self, batch: MicroBatch, scores: Mapping[str, Score] | None = None) -> Evaluation:
        """The old policy, to be called before the rollout's first optimiser step."""
        return self._forward(batch, scores, None)

    def _forward(self, batch: MicroBatch, scores: Mapping[str, Score] | None, before: Evaluation | None) -> Evaluation:
        here = scores is None and before is None
        # The teacher's passes first: nothing of theirs needs the graph that the training forward builds.
        teachers = self.scorer.teachers(batch) if here else {}
        reference = before.reference if before else self._reference(batch, scores)
        head, topk = self._head, self.scorer.topk
        hidden = head.hidden(self._model, batch.packed)
        stats = head.stats(self._model, hidden, batch.temperature, topk if here else 0)
        if before is not None:
            distillation = before.distillation
        elif topk == 0:
            distillation = None
        elif scores is not None:
            distillation = unpack(batch, scores, topk)
        else:
            distillation = self.scorer.distil(batch, teachers, stats.topk_ids)
        ids = batch.targets[:, None]
        ids = ids if distillation is None else torch.cat([ids, distillation.ids], 1)
        logp = head.logits(self._model, hidden, ids, batch.temperature) - stats.lse[:, None]
        return Evaluation(logp, stats.entropy, distillation, reference)

    def _reference(self, batch: MicroBatch, scores: Mapping[str, Score] | None) -> Float[Tensor, " n"] | None:
        if scores is None or self._config.kl_coef == 0:
            return self.scorer.reference(batch)
        return unpack_reference(batch, scores)

    def _unfit(
        self, batch: MicroBatch, old_logp: Tensor, opd: OpdInputs | None, reference: Tensor | None
    ) -> dict[str, DropReason]:
        """Samples found unfit after the batch has closed: masked, but still counted in N."""
        samples = batch.samples
        mismatch = mask_mismatch(
            old_logp,
            batch.rollout_logp,
            batch.mask,
            batch.sample_index,
            samples=len(samples),
            max_logprob_diff=self._config.max_logprob_diff,
        )
        missing = torch.zeros_like(batch.mask)
        if opd is not None:
            finite = torch.isfinite(opd.teacher_logp) & torch.isfinite(opd.teacher_old_logp)
            missing |= (~finite & opd.support).any(1) & opd.has_hint
        if reference is not None:
            missing |= ~torch.isfinite(reference)
        lost = torch.bincount(batch.sample_index, weights=(missing & batch.mask).float(), minlength=len(samples)) > 0
        return _named(samples, mismatch, DropReason.LOGPROB_MISMATCH) | _named(samples, lost, DropReason.MISSING_SCORE)


def _opd_inputs(found: Distillation, logp: Float[Tensor, "n K"], old_logp: Float[Tensor, "n K"]) -> OpdInputs:
    return OpdInputs(
        cur_logp=logp,
        old_logp=old_logp,
        teacher_logp=found.teacher_logp,
        teacher_old_logp=old_logp if found.old_logp is None else found.old_logp,
        support=found.support,
        has_hint=found.has_hint,
        hint=found.hint,
        overlap=found.overlap,
    )


def _parity_sums(batch: MicroBatch, old_logp: Tensor, probe: Mapping[str, tuple[float, ...]]) -> Sums:
    probed = [(i, probe[s.sample_id]) for i, s in enumerate(batch.samples) if s.sample_id in probe]
    gaps = [(old_logp[batch.sample_index == i] - torch.tensor(row, device=old_logp.device)).abs() for i, row in probed]
    gap = torch.cat(gaps) if gaps else old_logp[:0]
    return {"parity": gap.sum(), "parity_tokens": torch.tensor(len(gap))}


def _named(samples: tuple[Sample, ...], which: Bool[Tensor, " samples"], reason: DropReason) -> dict[str, DropReason]:
    return {sample.sample_id: reason for sample, flag in zip(samples, which.tolist(), strict=True) if flag}
