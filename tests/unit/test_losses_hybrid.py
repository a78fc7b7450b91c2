"""The hybrid loss, through the chunked head, against the plain float64 reference."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from openclaw_core.losses import (
    HybridInputs,
    HybridOutput,
    LossConfig,
    LossError,
    OpdInputs,
    Selection,
    add_sums,
    finish_metrics,
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
"""More than the samples below: other ranks hold the rest."""
SEED = 11


@dataclass(frozen=True)
class Sample:
    """Hidden states and data of one sample."""

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
    """A micro-batch and the output matrices of the policy, of the start of the step and of the start model."""

    samples: list[Sample]
    w_cur: Tensor
    w_old: Tensor
    w_ref: Tensor

    def leaves(self) -> list[Tensor]:
        return [self.w_cur, *(sample.h_cur for sample in self.samples)]

    def gradients(self) -> list[Tensor]:
        """Gradients of the leaves, which are cleared."""
        result = [torch.zeros_like(leaf) if leaf.grad is None else leaf.grad for leaf in self.leaves()]
        for leaf in self.leaves():
            leaf.grad = None
        return result


def make_case(seed: int = SEED, *, colocated: bool = False) -> Case:
    """``colocated``: pi_old is the policy itself, as with one optimiser step per rollout."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    def sample(hints: int, mask: list[int], reward: float, temperature: float, shaped: bool) -> Sample:
        tokens = len(mask)
        h = normal(tokens, HIDDEN).requires_grad_()
        h_old = h.detach() if colocated else h.detach() + 0.1 * normal(tokens, HIDDEN)
        teachers = [h_old + 0.3 * (c + 1) * normal(tokens, HIDDEN) for c in reversed(range(hints))]
        ids = torch.randint(VOCAB, (tokens,), generator=generator)
        return Sample(h, h_old, normal(tokens, HIDDEN), teachers, ids, normal(tokens), mask, reward, temperature, shaped)

    samples = [
        sample(hints=3, mask=[1, 1, 0, 1, 1], reward=1, temperature=0.7, shaped=False),
        sample(hints=0, mask=[1, 1, 1], reward=-1, temperature=1.3, shaped=False),
        sample(hints=1, mask=[1, 1, 1, 1], reward=0, temperature=0.7, shaped=True),
        sample(hints=2, mask=[0, 0], reward=1, temperature=1.0, shaped=False),
        sample(hints=2, mask=[0, 1, 1, 1], reward=-1, temperature=0.7, shaped=True),
    ]
    w = normal(PADDED, HIDDEN).requires_grad_()
    w_old = w.detach() if colocated else w.detach() + 0.1 * normal(PADDED, HIDDEN)
    return Case(samples, w, w_old, normal(PADDED, HIDDEN))


def chunked_loss(
    case: Case, settings: Settings, chunk: int = 3, samples: Sequence[int] | None = None, generator_seed: int = 0
) -> HybridOutput:
    """The loss of some of the case's samples, as a trainer computes it."""
    chosen = [case.samples[i] for i in (range(len(case.samples)) if samples is None else samples)]
    temperature = torch.cat([torch.full((len(s.mask),), s.temperature, dtype=torch.float64) for s in chosen])
    sample_index = torch.cat([torch.full((len(s.mask),), i) for i, s in enumerate(chosen)])
    mask = torch.cat([torch.tensor(s.mask) for s in chosen]).bool()
    y = torch.cat([s.response_ids for s in chosen])

    def log_probs(h: Tensor, w: Tensor, ids: Tensor, tau: Tensor, lse: Tensor) -> Tensor:
        return logits_at(h, w, ids, tau, chunk=chunk, tied=False) - lse[:, None]

    def stats(h: Tensor, w: Tensor, tau: Tensor) -> Any:
        return head_stats(h, w, tau, vocab_size=VOCAB, topk=TOPK, chunk=chunk, tied=False)

    with torch.no_grad():
        h_old, h_ref = torch.cat([s.h_old for s in chosen]), torch.cat([s.h_ref for s in chosen])
        old = stats(h_old, case.w_old, temperature)
        ref_logp = log_probs(h_ref, case.w_ref, y[:, None], temperature, stats(h_ref, case.w_ref, temperature).lse)[:, 0]
        old_logp = log_probs(h_old, case.w_old, y[:, None], temperature, old.lse)[:, 0]

    generator = torch.Generator().manual_seed(generator_seed)
    selections: list[Selection] = []
    teacher_logp: list[Tensor] = []
    for i, sample in enumerate(chosen):
        rows, tau = sample_index == i, temperature[sample_index == i]
        if not sample.h_teacher:
            empty = torch.zeros(len(sample.mask), dtype=torch.int64)
            support = type_support(torch.zeros(len(sample.mask), TOPK, dtype=torch.int64))
            selections.append(Selection(hint=empty, overlap=empty, support=support))
            teacher_logp.append(torch.full((len(sample.mask), TOPK), torch.nan, dtype=torch.float64))
            continue
        teachers = [stats(h, case.w_old, tau) for h in sample.h_teacher]
        selection = select(
            old.topk_ids[rows],
            torch.stack([teacher.topk_ids for teacher in teachers]),
            mask[rows],
            hint_selection=settings.hint_selection,  # type: ignore[arg-type]
            subset_mode=settings.subset_mode,  # type: ignore[arg-type]
            generator=generator,
        )
        positions = torch.arange(len(sample.mask))
        h = torch.stack(sample.h_teacher)[selection.hint, positions]
        lse = torch.stack([teacher.lse for teacher in teachers])[selection.hint, positions]
        selections.append(selection)
        teacher_logp.append(log_probs(h, case.w_old, selection.support.ids, tau, lse))

    h_cur = torch.cat([s.h_cur for s in chosen])
    support_ids = torch.cat([s.support.ids for s in selections])
    cur = stats(h_cur, case.w_cur, temperature)
    cur_logp = log_probs(h_cur, case.w_cur, torch.cat([y[:, None], support_ids], dim=1), temperature, cur.lse)
    with torch.no_grad():
        old_support = log_probs(h_old, case.w_old, support_ids, temperature, old.lse)
    inputs = HybridInputs(
        cur_logp=cur_logp[:, 0],
        old_logp=old_logp,
        rollout_logp=old_logp - torch.cat([s.rollout_gap for s in chosen]),
        advantage=torch.cat([torch.full((len(s.mask),), s.reward, dtype=torch.float64) for s in chosen]),
        entropy=cur.entropy,
        mask=mask,
        weight=token_weights(mask, sample_index, global_samples=GLOBAL_SAMPLES, dtype=torch.float64),
        shaped=torch.cat([torch.full((len(s.mask),), s.shaped) for s in chosen]),
        ref_logp=ref_logp,
        opd=OpdInputs(
            cur_logp=cur_logp[:, 1:],
            old_logp=old_support,
            teacher_logp=torch.cat(teacher_logp),
            support=torch.cat([s.support.mask for s in selections]),
            has_hint=torch.cat([torch.full((len(s.mask),), bool(s.h_teacher)) for s in chosen]),
            hint=torch.cat([s.hint for s in selections]),
            overlap=torch.cat([s.overlap for s in selections]),
        ),
    )
    return hybrid_loss(inputs, loss_config(settings))


def loss_config(settings: Settings) -> LossConfig:
    names = {f.name for f in dataclasses.fields(LossConfig)}
    return LossConfig(**{k: v for k, v in dataclasses.asdict(settings).items() if k in names})


def expected_loss(case: Case, settings: Settings, random_hints: Sequence[int] | None = None) -> reference_loss.Result:
    samples: list[reference_loss.Sample] = []
    for i, sample in enumerate(case.samples):
        z_old = sample.h_old @ case.w_old[:VOCAB].T
        old = torch.log_softmax(z_old / sample.temperature, -1).gather(1, sample.response_ids[:, None])[:, 0]
        samples.append(
            reference_loss.Sample(
                z_cur=sample.h_cur @ case.w_cur[:VOCAB].T,
                z_old=z_old,
                z_ref=sample.h_ref @ case.w_ref[:VOCAB].T,
                z_teacher=[h @ case.w_old[:VOCAB].T for h in sample.h_teacher],
                response_ids=sample.response_ids.tolist(),
                rollout_logprobs=(old - sample.rollout_gap).tolist(),
                mask=sample.mask,
                reward=sample.reward,
                temperature=sample.temperature,
                shaped=sample.shaped,
                random_hint=0 if random_hints is None else random_hints[i],
            )
        )
    return reference_loss.reference_loss(samples, settings, GLOBAL_SAMPLES)
