"""The forward passes that the loss needs besides the policy's own: hinted teacher, old policy, start model (ALGORITHM 12).

Used in two places. Colocated, the trainer's ranks call ``teachers``, ``distil`` and ``reference`` around their training
forward. A scorer of its own calls ``score``, which does all of it, old policy included, and sends numbers at K ids only.

Import this module only after ``Accelerator.prepare()``: it imports megatron.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from openclaw_core.config.schema import RunConfig
from openclaw_core.losses import Selection, select
from openclaw_core.scorer.score import Score
from openclaw_core.trainer.heads import ResponseHead
from openclaw_core.trainer.packing import MicroBatch, chunks_by_tokens, pack
from openclaw_core.types import Sample


@dataclass(frozen=True, slots=True)
class Distillation:
    """What OPD needs on the n rows of a micro-batch, all detached. Rows without a hint may hold anything."""

    ids: Int[Tensor, "n K"]
    """S_t"""
    support: Bool[Tensor, "n K"]
    teacher_logp: Float[Tensor, "n K"]
    has_hint: Bool[Tensor, " n"]
    hint: Int[Tensor, " n"]
    overlap: Int[Tensor, " n"]
    old_logp: Float[Tensor, "n K"] | None = None
    """ell_old by whoever computed ``teacher_logp``; None: the caller's own forward pass is that."""


@dataclass(frozen=True, slots=True)
class Teacher:
    """The hinted passes of one sample: hidden states, normalisers and S^p, per hint and position."""

    hidden: Float[Tensor, "C T H"]
    lse: Float[Tensor, "C T"]
    topk_ids: Int[Tensor, "C T K"]


class Scorer:
    """See the module's docstring. ``policy`` is the model at the start of the step; ``start`` the model of the run's start.

    ``start`` is needed with kl_coef > 0 or a frozen teacher. ``multiple``: lengths are padded to multiples of it.
    """

    def __init__(
        self,
        policy: torch.nn.Module,
        start: torch.nn.Module | None,
        head: ResponseHead,
        config: RunConfig,
        *,
        device: str,
        multiple: int,
    ) -> None:
        self._policy, self._start, self._head = policy, start, head
        self._teacher = start if config.teacher.mode == "frozen" else policy
        self._config, self._device, self._multiple = config, device, multiple
        self.topk = config.loss.topk if config.loss.w_opd > 0 else 0
        """K; 0 where OPD is off."""

    @staticmethod
    def needs_start(config: RunConfig) -> bool:
        """Whether the start model's weights are needed."""
        return config.loss.kl_coef > 0 or (config.teacher.mode == "frozen" and config.loss.w_opd > 0)

    @torch.no_grad()
    def score(self, sample: Sample, version: int) -> Score:
        """Everything about a sample, with the policy's weights of ``version``: 1 + C forwards, and the start model's.

        Alone: what else happens to be scored with it would change its padding, and a replay must find the same bits.
        """
        batch = MicroBatch.of([sample], self._multiple).to(self._device)
        reference = self.reference(batch)
        found = self._distil_alone(batch) if self.topk and sample.teacher_prompt_ids else None
        return Score(
            sample_id=sample.sample_id,
            version=version,
            ref_logp=None if reference is None else reference.float().cpu().numpy(),
            **_arrays(found, len(sample.response_ids)),
        )

    @torch.no_grad()
    def teachers(self, batch: MicroBatch) -> dict[int, Teacher]:
        """The teacher given each hinted context, by index of the sample; empty where OPD is off."""
        hinted = [(i, prompt) for i, s in enumerate(batch.samples) for prompt in s.teacher_prompt_ids if self.topk]
        lengths = [len(prompt) + len(batch.samples[i].response_ids) for i, prompt in hinted]
        passes: dict[int, list[tuple[Tensor, Tensor, Tensor]]] = {}
        for chunk in chunks_by_tokens(lengths, self._config.train.max_tokens_per_rank):
            part = hinted[chunk.start : chunk.stop]
            for (i, _), result in zip(part, self._hinted_passes(batch, part), strict=True):
                passes.setdefault(i, []).append(result)
        return {i: Teacher(*(torch.stack(pieces) for pieces in zip(*parts, strict=True))) for i, parts in passes.items()}

    @torch.no_grad()
    def distil(self, batch: MicroBatch, teachers: Mapping[int, Teacher], student_ids: Int[Tensor, "n K"]) -> Distillation:
        """Choose hint and support of every hinted sample, given S^q, and evaluate the teacher there."""
        n, k = student_ids.shape
        ids, support = student_ids.clone(), torch.zeros(n, k, dtype=torch.bool, device=self._device)
        logp = torch.zeros(n, k, device=self._device)
        hint, overlap = (torch.zeros(n, dtype=torch.long, device=self._device) for _ in range(2))
        for i, teacher in teachers.items():
            own = batch.sample_index == i
            choice = self._select(batch.samples[i], student_ids[own], teacher, batch.mask[own])
            positions = torch.arange(choice.hint.shape[0], device=self._device)
            hidden, lse = teacher.hidden[choice.hint, positions], teacher.lse[choice.hint, positions]
            logits = self._head.logits(self._require(self._teacher), hidden, choice.support.ids, batch.temperature[own])
            ids[own], support[own], logp[own] = choice.support.ids, choice.support.mask, (logits - lse[:, None]).to(logp.dtype)
            hint[own], overlap[own] = choice.hint, choice.overlap
        has_hint = batch.per_row([i in teachers for i in range(len(batch.samples))])
        return Distillation(ids, support, logp, has_hint, hint, overlap)

    @torch.no_grad()
    def reference(self, batch: MicroBatch) -> Float[Tensor, " n"] | None:
        """ell_ref(y_t), or None with kl_coef = 0."""
        if self._config.loss.kl_coef == 0:
            return None
        start, head = self._require(self._start), self._head
        hidden = head.hidden(start, batch.packed)
        lse = head.stats(start, hidden, batch.temperature, topk=0).lse
        return head.logits(start, hidden, batch.targets[:, None], batch.temperature)[:, 0] - lse

    def _distil_alone(self, batch: MicroBatch) -> Distillation:
        """With an old-policy pass of its own."""
        teachers, head = self.teachers(batch), self._head
        hidden = head.hidden(self._policy, batch.packed)
        stats = head.stats(self._policy, hidden, batch.temperature, self.topk)
        found = self.distil(batch, teachers, stats.topk_ids)
        old = head.logits(self._policy, hidden, found.ids, batch.temperature) - stats.lse[:, None]
        return Distillation(found.ids, found.support, found.teacher_logp, found.has_hint, found.hint, found.overlap, old)

    def _hinted_passes(
        self, batch: MicroBatch, hinted: list[tuple[int, tuple[int, ...]]]
    ) -> list[tuple[Tensor, Tensor, Tensor]]:
        packed = pack([(prompt, batch.samples[i].response_ids) for i, prompt in hinted], self._multiple).to(self._device)
        teacher = self._require(self._teacher)
        hidden = self._head.hidden(teacher, packed)
        temperatures = [batch.samples[i].temperature for i, _ in hinted]
        temperature = torch.tensor(temperatures, device=self._device).repeat_interleave(
            torch.tensor(packed.lengths, device=self._device)
        )
        stats = self._head.stats(teacher, hidden, temperature, self.topk)
        return list(zip(*(x.split(packed.lengths) for x in (hidden, stats.lse, stats.topk_ids)), strict=True))

    def _select(self, sample: Sample, student_ids: Tensor, teacher: Teacher, mask: Tensor) -> Selection:
        # Seeded by the sample, so that a drawn hint does not depend on how the batch is split.
        seed = zlib.crc32(sample.sample_id.encode(), self._config.train.seed)
        return select(
            student_ids,
            teacher.topk_ids,
            mask,
            hint_selection=self._config.loss.hint_selection,
            subset_mode=self._config.loss.subset_mode,
            generator=torch.Generator().manual_seed(seed),
        )

    @staticmethod
    def _require(model: torch.nn.Module | None) -> torch.nn.Module:
        if model is None:
            raise ValueError("the start model is needed with kl_coef > 0 or teacher.mode=frozen; see Scorer.needs_start")
        return model


def unpack(batch: MicroBatch, scores: Mapping[str, Score], topk: int) -> Distillation:
    """Scores that came from elsewhere, laid out on the rows of a micro-batch.

    Rows of a sample whose score is absent hold NaN and count as hinted: the sample is then masked as ``missing_score``.
    """
    n = len(batch.targets)
    ids, support = torch.zeros(n, topk, dtype=torch.long), torch.zeros(n, topk, dtype=torch.bool)
    teacher, old = torch.full((n, topk), torch.nan), torch.full((n, topk), torch.nan)
    has_hint, hint, overlap = torch.zeros(n, dtype=torch.bool), torch.zeros(n).long(), torch.zeros(n).long()
    begin = 0
    for sample, length in zip(batch.samples, batch.packed.lengths, strict=True):
        own = slice(begin, begin := begin + length)
        has_hint[own] = bool(sample.teacher_prompt_ids)
        score = scores.get(sample.sample_id)
        if score is None:
            support[own] = True
        elif sample.teacher_prompt_ids:
            ids[own], support[own] = torch.tensor(score.ids).long(), torch.tensor(score.support)
            teacher[own], old[own] = torch.tensor(score.teacher_logp), torch.tensor(score.old_logp)
            hint[own], overlap[own] = torch.tensor(score.hint).long(), torch.tensor(score.overlap).long()
    device = batch.targets.device
    return Distillation(*(x.to(device) for x in (ids, support, teacher, has_hint, hint, overlap, old)))


def unpack_reference(batch: MicroBatch, scores: Mapping[str, Score]) -> Float[Tensor, " n"]:
    """ell_ref(y_t) of scores that came from elsewhere; NaN where one is absent."""
    rows = [
        torch.full((length,), torch.nan) if (score := scores.get(s.sample_id)) is None else torch.tensor(score.ref_logp)
        for s, length in zip(batch.samples, batch.packed.lengths, strict=True)
    ]
    return torch.cat(rows).to(batch.targets.device)


def _arrays(found: Distillation | None, n: int) -> dict[str, np.ndarray]:
    """The fields of a Score; K = 0 where nothing is distilled."""
    if found is None:
        empty, zeros = np.zeros((n, 0), np.float32), np.zeros(n, np.int32)
        fields = {"ids": empty.astype(np.int32), "support": empty.astype(np.bool_), "hint": zeros, "overlap": zeros}
        return fields | {"teacher_logp": empty, "old_logp": empty}
    types = {"ids": torch.int32, "support": torch.bool, "hint": torch.int32, "overlap": torch.int32}
    types |= {"teacher_logp": torch.float32, "old_logp": torch.float32}
    return {name: getattr(found, name).to(dtype).cpu().numpy() for name, dtype in types.items()}
