"""Forward pass and loss of one micro-batch, scorer and trainer on one device group (ALGORITHM 12, colocated).

With one optimiser step per rollout the training forward *is* the old policy: ell_old, S^q and ell_old(S^q) are taken,
detached, from it. Hidden states of teacher and reference live for one micro-batch only, and logits for one chunk.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from openclaw_core.config import schema
from openclaw_core.losses import (
    HeadStats,
    HybridInputs,
    LossConfig,
    OpdInputs,
    Selection,
    Sums,
    head_stats,
    hybrid_loss,
    logits_at,
    mask_mismatch,
    select,
    token_weights,
)
from openclaw_core.trainer.model import hidden_states, output_weight, unwrap
from openclaw_core.trainer.packing import MicroBatch, Packed, pack
from openclaw_core.types import DropReason, Sample
from openclaw_core.weights.spec import ModelSpec


class NonFiniteForward(ArithmeticError):
    """The policy's own log-probs of a micro-batch are not finite: the step must be skipped (ALGORITHM 11)."""


@dataclass(frozen=True, slots=True)
class MicroBatchResult:
    """``loss`` carries the gradient; ``masked`` says which samples were found unfit, and why."""

    loss: Float[Tensor, ""]
    sums: Sums
    masked: dict[str, DropReason]


@dataclass(frozen=True, slots=True)
class _Teacher:
    """The hinted passes of one sample: hidden states, normalisers and S^p, per hint and position."""

    hidden: Float[Tensor, "C T H"]
    lse: Float[Tensor, "C T"]
    topk_ids: Int[Tensor, "C T K"]


class ColocatedStep:
    """The loss of a micro-batch under ``model``, with the teacher's and the reference's passes made on the way."""

    def __init__(
        self, model: torch.nn.Module, reference: torch.nn.Module | None, spec: ModelSpec, config: schema.LossConfig
    ) -> None:
        fields = LossConfig.__dataclass_fields__
        self._loss = LossConfig(**{name: value for name, value in config.model_dump().items() if name in fields})
        self._model, self._reference, self._spec, self._config = model, reference, spec, config

    def __call__(
        self, batch: MicroBatch, global_samples: int, probe: Mapping[str, tuple[float, ...]], generator: torch.Generator
    ) -> MicroBatchResult:
        """Loss and metric sums. ``global_samples``: N of the whole batch; ``probe``: log-probs that the engine recomputed.

        Raises NonFiniteForward.
        """
        teachers = self._teachers(batch)
        reference_logp = self._reference_logp(batch)
        hidden = _rows(self._model, batch.packed)
        stats = self._stats(hidden, self._weight, batch.temperature)
        choices = {i: self._select(batch, i, teacher, stats.topk_ids, generator) for i, teacher in teachers.items()}
        ids = _support_ids(batch, choices, stats.topk_ids)
        logp = self._logits(hidden, self._weight, torch.cat([batch.targets[:, None], ids], 1), batch.temperature)
        logp = logp - stats.lse[:, None]
        old = logp.detach()
        if not bool(torch.isfinite(old).all()):
            raise NonFiniteForward(f"non-finite log-probs in the micro-batch of samples {[s.sample_id for s in batch.samples]}")

        opd = self._opd_inputs(batch, teachers, choices, ids, logp[:, 1:]) if self._loss.w_opd > 0 else None
        masked = self._unfit(batch, old[:, 0], opd)
        mask = batch.mask & ~batch.per_row([s.sample_id in masked for s in batch.samples])
        inputs = HybridInputs(
            cur_logp=logp[:, 0],
            old_logp=old[:, 0],
            rollout_logp=batch.rollout_logp,
            advantage=batch.per_row([s.reward for s in batch.samples]),
            entropy=stats.entropy,
            mask=mask,
            weight=token_weights(mask, batch.sample_index, global_samples=global_samples),
            shaped=batch.per_row([s.shaped for s in batch.samples]),
            ref_logp=reference_logp,
            opd=opd,
        )
        output = hybrid_loss(inputs, self._loss)
        return MicroBatchResult(output.loss, output.sums | _parity_sums(batch, old[:, 0], probe), masked)

    @property
    def _weight(self) -> Tensor:
        return output_weight(unwrap(self._model))

    def _stats(self, hidden: Tensor, weight: Tensor, temperature: Tensor, topk: int | None = None) -> HeadStats:
        return head_stats(
            hidden,
            weight,
            temperature,
            vocab_size=self._spec.vocab_size,
            topk=self._config.topk if topk is None else topk,
            chunk=self._config.head_chunk,
            tied=self._spec.tied,
        )

    def _logits(self, hidden: Tensor, weight: Tensor, ids: Tensor, temperature: Tensor) -> Tensor:
        return logits_at(hidden, weight, ids, temperature, chunk=self._config.head_chunk, tied=self._spec.tied)

    @torch.no_grad()
    def _teachers(self, batch: MicroBatch) -> dict[int, _Teacher]:
        """pi_old given each hinted context, by index of the sample; one forward for all hints of the micro-batch."""
        hinted = [(i, prompt) for i, s in enumerate(batch.samples) for prompt in s.teacher_prompt_ids if self._loss.w_opd > 0]
        if not hinted:
            return {}
        packed = pack([(prompt, batch.samples[i].response_ids) for i, prompt in hinted])
        hidden = _rows(self._model, packed)
        temperature = torch.cat(
            [torch.full((n,), batch.samples[i].temperature) for (i, _), n in zip(hinted, packed.lengths, strict=True)]
        )
        stats = self._stats(hidden, self._weight, temperature)
        parts = [list(x.split(packed.lengths)) for x in (hidden, stats.lse, stats.topk_ids)]
        owners = [i for i, _ in hinted]
        return {
            i: _Teacher(
                *(torch.stack([part for part, owner in zip(pieces, owners, strict=True) if owner == i]) for pieces in parts)
            )
            for i in dict.fromkeys(owners)
        }

    @torch.no_grad()
    def _reference_logp(self, batch: MicroBatch) -> Float[Tensor, " n"] | None:
        if self._reference is None:
            return None
        hidden, weight = _rows(self._reference, batch.packed), output_weight(unwrap(self._reference))
        stats = self._stats(hidden, weight, batch.temperature, topk=0)
        return self._logits(hidden, weight, batch.targets[:, None], batch.temperature)[:, 0] - stats.lse

    def _select(
        self, batch: MicroBatch, i: int, teacher: _Teacher, student_ids: Int[Tensor, "n K"], generator: torch.Generator
    ) -> Selection:
        own = batch.sample_index == i
        return select(
            student_ids[own],
            teacher.topk_ids,
            batch.mask[own],
            hint_selection=self._config.hint_selection,
            subset_mode=self._config.subset_mode,
            generator=generator,
        )

    @torch.no_grad()
    def _opd_inputs(
        self, batch: MicroBatch, teachers: dict[int, _Teacher], choices: dict[int, Selection], ids: Tensor, logp: Tensor
    ) -> OpdInputs:
        n, k = ids.shape
        teacher_logp = torch.zeros(n, k)
        support = torch.zeros(n, k, dtype=torch.bool)
        hint, overlap = torch.zeros(n, dtype=torch.long), torch.zeros(n, dtype=torch.long)
        for i, choice in choices.items():
            own, teacher = batch.sample_index == i, teachers[i]
            positions = torch.arange(choice.hint.shape[0])
            hidden, lse = teacher.hidden[choice.hint, positions], teacher.lse[choice.hint, positions]
            scores = self._logits(hidden, self._weight, ids[own], batch.temperature[own]) - lse[:, None]
            teacher_logp[own], support[own] = scores.to(teacher_logp.dtype), choice.support.mask
            hint[own], overlap[own] = choice.hint, choice.overlap
        has_hint = batch.per_row([i in choices for i in range(len(batch.samples))])
        return OpdInputs(logp, logp.detach(), teacher_logp, support, has_hint, hint, overlap)

    def _unfit(self, batch: MicroBatch, old_logp: Tensor, opd: OpdInputs | None) -> dict[str, DropReason]:
        """Samples found unfit after the batch has closed: masked, but still counted in N."""
        mismatch = mask_mismatch(
            old_logp,
            batch.rollout_logp,
            batch.mask,
            batch.sample_index,
            samples=len(batch.samples),
            max_logprob_diff=self._config.max_logprob_diff,
        )
        masked = _named(batch.samples, mismatch, DropReason.LOGPROB_MISMATCH)
        if opd is not None:
            broken = ((~torch.isfinite(opd.teacher_logp)) & opd.support).any(1) & opd.has_hint
            lost = torch.bincount(batch.sample_index, weights=broken.float(), minlength=len(batch.samples)) > 0
            masked |= _named(batch.samples, lost, DropReason.MISSING_SCORE)
        return masked


def _rows(model: torch.nn.Module, packed: Packed) -> Float[Tensor, "n H"]:
    hidden = hidden_states(model, packed.ids)
    return hidden.reshape(-1, hidden.shape[-1]).index_select(0, packed.rows)


def _support_ids(batch: MicroBatch, choices: dict[int, Selection], student_ids: Int[Tensor, "n K"]) -> Int[Tensor, "n K"]:
    """S_t of every row; rows of samples without hints get S^q, which no term uses."""
    ids = student_ids.clone()
    for i, choice in choices.items():
        ids[batch.sample_index == i] = choice.support.ids
    return ids


def _parity_sums(batch: MicroBatch, old_logp: Tensor, probe: Mapping[str, tuple[float, ...]]) -> Sums:
    probed = [(i, probe[s.sample_id]) for i, s in enumerate(batch.samples) if s.sample_id in probe]
    gaps = [(old_logp[batch.sample_index == i] - torch.tensor(row)).abs() for i, row in probed]
    gap = torch.cat(gaps) if gaps else old_logp[:0]
    return {"parity": gap.sum(), "parity_tokens": torch.tensor(len(gap))}


def _named(samples: tuple[Sample, ...], which: Bool[Tensor, " samples"], reason: DropReason) -> dict[str, DropReason]:
    return {sample.sample_id: reason for sample, flag in zip(samples, which.tolist(), strict=True) if flag}
