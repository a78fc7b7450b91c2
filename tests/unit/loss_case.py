"""A small float64 batch, taken to the loss in two ways: as a trainer does it, and by the plain reference."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from openclaw_core.losses import (
    HeadStats,
    HybridInputs,
    HybridOutput,
    LossConfig,
    OpdInputs,
    Selection,
    Support,
    head_stats,
    hybrid_loss,
    logits_at,
    select,
    token_weights,
)
from tests.unit import reference_loss
from tests.unit.reference_loss import Settings

VOCAB, PADDED, HIDDEN, TOPK = 23, 28, 6, 4
GLOBAL_SAMPLES = 7
"""More than a case holds: other ranks have the rest."""


@dataclass(frozen=True)
class Sample:
    """Hidden states [T, HIDDEN] and data of one sample. ``rollout_gap`` [T] is ell_old(y_t) - log mu(y_t)."""

    h_cur: Tensor
    h_old: Tensor
    h_ref: Tensor
    h_teacher: list[Tensor]
    response_ids: Tensor
    rollout_gap: Tensor
    mask: list[int]
    reward: float
    temperature: float
    shaped: bool


@dataclass(frozen=True)
class Case:
    """Samples, and the output matrices of the policy, of the start of the step and of the start model."""

    samples: list[Sample]
    w_cur: Tensor
    w_old: Tensor
    w_ref: Tensor

    def gradients(self, loss: Tensor) -> list[Tensor]:
        """d loss / d W and d loss / d h of each sample; zero where the loss does not depend on it."""
        leaves = [self.w_cur, *(sample.h_cur for sample in self.samples)]
        return list(torch.autograd.grad(loss, leaves, allow_unused=True, materialize_grads=True))


def make_case(*, colocated: bool = False, drift: float = 0.1, seed: int = 11) -> Case:
    """pi_old is ``drift`` away from the policy or, ``colocated``, the policy itself, as with one optimiser step per rollout."""
    generator = torch.Generator().manual_seed(seed)
    normal = partial(torch.randn, generator=generator, dtype=torch.float64)

    def sample(hints: int, mask: list[int], reward: float, temperature: float, shaped: bool = False) -> Sample:
        h = normal(len(mask), HIDDEN).requires_grad_()
        h_old = h.detach() if colocated else h.detach() + drift * normal(h.shape)
        return Sample(
            h_cur=h,
            h_old=h_old,
            h_ref=h_old + 0.2 * normal(h.shape),
            h_teacher=[h_old + 0.2 * (hints - c) * normal(h.shape) for c in range(hints)],
            response_ids=torch.randint(VOCAB, (len(mask),), generator=generator),
            rollout_gap=normal(len(mask)),
            mask=mask,
            reward=reward,
            temperature=temperature,
            shaped=shaped,
        )

    samples = [
        sample(hints=3, mask=[1, 1, 0, 1, 1], reward=1, temperature=0.7),
        sample(hints=0, mask=[1, 1, 1], reward=-1, temperature=1.3),
        sample(hints=1, mask=[1, 1, 1, 1], reward=0, temperature=0.7, shaped=True),
        sample(hints=2, mask=[0, 0], reward=1, temperature=1.3),
        sample(hints=2, mask=[0, 1, 1, 1], reward=-1, temperature=0.7, shaped=True),
    ]
    w = normal(PADDED, HIDDEN).requires_grad_()
    w_old = w.detach() if colocated else w.detach() + drift * normal(w.shape)
    return Case(samples, w, w_old, w_ref=w_old + 0.1 * normal(w.shape))


def loss_config(settings: Settings) -> LossConfig:
    names = {field.name for field in dataclasses.fields(LossConfig)}
    return LossConfig(**{name: value for name, value in dataclasses.asdict(settings).items() if name in names})


def expected_loss(case: Case, settings: Settings, random_hints: Sequence[int] = ()) -> reference_loss.Result:
    """By the reference, from full logits."""

    def reference_sample(sample: Sample, random_hint: int) -> reference_loss.Sample:
        z_old = sample.h_old @ case.w_old[:VOCAB].T
        ell_old = torch.log_softmax(z_old / sample.temperature, -1)
        mu = ell_old[range(len(sample.mask)), sample.response_ids] - sample.rollout_gap
        return reference_loss.Sample(
            z_cur=sample.h_cur @ case.w_cur[:VOCAB].T,
            z_old=z_old,
            z_ref=sample.h_ref @ case.w_ref[:VOCAB].T,
            z_teacher=[h @ case.w_old[:VOCAB].T for h in sample.h_teacher],
            response_ids=sample.response_ids.tolist(),
            rollout_logprobs=mu.tolist(),
            mask=sample.mask,
            reward=sample.reward,
            temperature=sample.temperature,
            shaped=sample.shaped,
            random_hint=random_hint,
        )

    hints = random_hints or [0] * len(case.samples)
    samples = [reference_sample(sample, hint) for sample, hint in zip(case.samples, hints, strict=True)]
    return reference_loss.reference_loss(samples, settings, GLOBAL_SAMPLES)


def chunked_loss(case: Case, settings: Settings, *, chunk: int = 3, part: slice = slice(None), seed: int = 0) -> HybridOutput:
    """As a trainer does it: the samples of ``part`` packed into one micro-batch, through the chunked head."""
    inputs = hybrid_inputs(case, settings, chunk=chunk, part=part, seed=seed)
    return hybrid_loss(inputs, loss_config(settings))


def hybrid_inputs(case: Case, settings: Settings, *, chunk: int = 3, part: slice = slice(None), seed: int = 0) -> HybridInputs:
    samples = case.samples[part]
    head = _Head(chunk)
    sample_index = torch.repeat_interleave(torch.tensor([len(sample.mask) for sample in samples]))

    def per_token(get: Callable[[Sample], float], dtype: torch.dtype = torch.float64) -> Tensor:
        return torch.tensor([get(sample) for sample in samples], dtype=dtype)[sample_index]

    mask = torch.cat([torch.tensor(sample.mask, dtype=torch.bool) for sample in samples])
    tau = per_token(lambda sample: sample.temperature)
    y = torch.cat([sample.response_ids for sample in samples])[:, None]
    h_cur, h_old, h_ref = (torch.cat([getattr(s, name) for s in samples]) for name in ("h_cur", "h_old", "h_ref"))

    with torch.no_grad():
        old = head.stats(h_old, case.w_old, tau)
        old_logp = head.log_probs(h_old, case.w_old, y, tau, old.lse)[:, 0]
        ref_logp = head.log_probs(h_ref, case.w_ref, y, tau, head.stats(h_ref, case.w_ref, tau).lse)[:, 0]
        generator = torch.Generator().manual_seed(seed)
        choices: list[tuple[Selection, Tensor]] = []
        for i, sample in enumerate(samples):
            rows = sample_index == i
            choices.append(head.teach(sample, case.w_old, old.topk_ids[rows], mask[rows], tau[rows], settings, generator))
        support_ids = torch.cat([selection.support.ids for selection, _ in choices])
        old_support_logp = head.log_probs(h_old, case.w_old, support_ids, tau, old.lse)

    cur = head.stats(h_cur, case.w_cur, tau)
    cur_logp = head.log_probs(h_cur, case.w_cur, torch.cat([y, support_ids], dim=1), tau, cur.lse)
    return HybridInputs(
        cur_logp=cur_logp[:, 0],
        old_logp=old_logp,
        rollout_logp=old_logp - torch.cat([sample.rollout_gap for sample in samples]),
        advantage=per_token(lambda sample: sample.reward),
        entropy=cur.entropy,
        mask=mask,
        weight=token_weights(mask, sample_index, global_samples=GLOBAL_SAMPLES, dtype=torch.float64),
        shaped=per_token(lambda sample: sample.shaped, torch.bool),
        ref_logp=ref_logp,
        opd=OpdInputs(
            cur_logp=cur_logp[:, 1:],
            old_logp=old_support_logp,
            teacher_logp=torch.cat([logp for _, logp in choices]),
            teacher_old_logp=old_support_logp,
            support=torch.cat([selection.support.mask for selection, _ in choices]),
            has_hint=per_token(lambda sample: bool(sample.h_teacher), torch.bool),
            hint=torch.cat([selection.hint for selection, _ in choices]),
            overlap=torch.cat([selection.overlap for selection, _ in choices]),
        ),
    )


@dataclass(frozen=True)
class _Head:
    chunk: int

    def stats(self, h: Tensor, w: Tensor, tau: Tensor) -> HeadStats:
        return head_stats(h, w, tau, vocab_size=VOCAB, topk=TOPK, chunk=self.chunk, tied=False)

    def log_probs(self, h: Tensor, w: Tensor, ids: Tensor, tau: Tensor, lse: Tensor) -> Tensor:
        return logits_at(h, w, ids, tau, chunk=self.chunk, tied=False) - lse[:, None]

    def teach(
        self,
        sample: Sample,
        w: Tensor,
        student_ids: Tensor,
        mask: Tensor,
        tau: Tensor,
        settings: Settings,
        generator: torch.Generator,
    ) -> tuple[Selection, Tensor]:
        """The chosen hint and support, and ell_T of the support; junk for a sample without hints."""
        if not sample.h_teacher:
            nothing = torch.zeros_like(student_ids[:, 0])
            support = Support(torch.zeros_like(student_ids), torch.ones_like(student_ids, dtype=torch.bool))
            return Selection(nothing, nothing, support), torch.full(student_ids.shape, 1e300, dtype=torch.float64)
        teachers = [self.stats(h, w, tau) for h in sample.h_teacher]
        selection = select(
            student_ids,
            torch.stack([teacher.topk_ids for teacher in teachers]),
            mask,
            hint_selection=settings.hint_selection,
            subset_mode=settings.subset_mode,
            generator=generator,
        )
        chosen = (selection.hint, torch.arange(len(mask)))
        h, lse = torch.stack(sample.h_teacher)[chosen], torch.stack([teacher.lse for teacher in teachers])[chosen]
        return selection, self.log_probs(h, w, selection.support.ids, tau, lse)
