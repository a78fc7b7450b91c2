"""What the loss saw of every response token, as it travels from the trainer's ranks to whoever shows it.

Free of torch and megatron at import. Nothing here is computed: the numbers are those that made the gradient, copied.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from jaxtyping import Bool, Float32, Int32
    from torch import Tensor

    from openclaw_core.losses import HybridInputs, HybridOutput
    from openclaw_core.scorer.scoring import Distillation
    from openclaw_core.trainer.packing import MicroBatch
    from openclaw_core.types import DropReason


@dataclass(frozen=True, slots=True)
class TokenColumns:
    """One row a response token; T rows. K = 0 where nothing is distilled: no hint, or w_opd = 0."""

    token: Int32[np.ndarray, " T"]
    """y_t"""
    rollout_logp: Float32[np.ndarray, " T"]
    """log mu(y_t)"""
    old_logp: Float32[np.ndarray, " T"]
    """ell_old(y_t)"""
    importance: Float32[np.ndarray, " T"]
    """c_t"""
    advantage: Float32[np.ndarray, " T"]
    """A"""
    trained: Bool[np.ndarray, " T"]
    """Whether the token counts: its mask, after samples that were found unfit."""
    rewarded: Bool[np.ndarray, " T"]
    """Whether the GRPO term, with c_t A, is among what the token is trained on."""
    hint: Int32[np.ndarray, " T"]
    """c*(t), index into the sample's hints."""
    overlap: Int32[np.ndarray, " T"]
    """O[c*, t]"""
    ids: Int32[np.ndarray, "T K"]
    """S_t; ids outside ``support`` are meaningless."""
    support: Bool[np.ndarray, "T K"]
    student_logp: Float32[np.ndarray, "T K"]
    """ell_old(v) by the trainer."""
    teacher_logp: Float32[np.ndarray, "T K"]
    """ell_T,c*(v)"""
    teacher_old_logp: Float32[np.ndarray, "T K"]
    """ell_old(v) by whoever computed ``teacher_logp``: what delta is taken from."""
    delta: Float32[np.ndarray, "T K"]
    """Clipped."""
    weight: Float32[np.ndarray, "T K"]
    """w_v"""
    token_advantage: Float32[np.ndarray, "T K"]
    """A_v"""


OF_ROW = ("token", "rollout_logp", "old_logp", "importance", "advantage", "trained", "rewarded", "hint", "overlap")
"""The columns of shape [T]."""
OF_SUPPORT = tuple(field.name for field in fields(TokenColumns) if field.name not in OF_ROW)
"""The columns of shape [T, K]."""


@dataclass(frozen=True, slots=True)
class SampleTokens:
    """One sample of a step. ``hints``: the candidates, in the order that c* counts in; ``masked``: why it does not count."""

    sample_id: str
    hints: tuple[str, ...]
    masked: str | None
    columns: TokenColumns

    @property
    def nbytes(self) -> int:
        """Memory of its columns."""
        return sum(getattr(self.columns, field.name).nbytes for field in fields(TokenColumns))


def sample_tokens(
    batch: MicroBatch,
    inputs: HybridInputs,
    output: HybridOutput,
    distillation: Distillation | None,
    masked: Mapping[str, DropReason],
) -> list[SampleTokens]:
    """The samples of a micro-batch, from what went into the loss (``distillation``: its S_t) and what it made of it."""
    tensors: dict[str, Tensor] = {
        "token": batch.targets.int(),
        "rollout_logp": inputs.rollout_logp,
        "old_logp": inputs.old_logp,
        "importance": output.importance,
        "advantage": inputs.advantage,
        "trained": inputs.mask,
        "rewarded": output.rewarded,
    }
    if distillation is not None and inputs.opd is not None and output.opd is not None:
        tensors |= {
            "hint": inputs.opd.hint.int(),
            "overlap": inputs.opd.overlap.int(),
            "student_logp": inputs.opd.old_logp,
            "teacher_logp": inputs.opd.teacher_logp,
            "teacher_old_logp": inputs.opd.teacher_old_logp,
            "support": inputs.opd.support,
            "ids": distillation.ids.int(),
            "delta": output.opd.delta,
            "weight": output.opd.weight,
            "token_advantage": output.opd.advantage,
        }
    whole = {name: tensor.detach().cpu().numpy() for name, tensor in tensors.items()}
    made: list[SampleTokens] = []
    begin = 0
    for sample, length in zip(batch.samples, batch.packed.lengths, strict=True):
        own = slice(begin, begin := begin + length)
        columns = {name: array[own] for name, array in whole.items()}
        if "ids" not in whole or not sample.teacher_prompt_ids:
            columns |= _nothing_distilled(length)
        reason = masked.get(sample.sample_id)
        made.append(SampleTokens(sample.sample_id, sample.hints, reason and reason.value, TokenColumns(**columns)))
    return made


def _nothing_distilled(length: int) -> dict[str, np.ndarray]:
    kinds = {"ids": np.int32, "support": np.bool_}
    columns = {name: np.zeros((length, 0), kinds.get(name, np.float32)) for name in OF_SUPPORT}
    return columns | {name: np.zeros(length, np.int32) for name in ("hint", "overlap")}
