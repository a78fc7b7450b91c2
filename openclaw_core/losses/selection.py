"""Which hint teaches and on which ids: the overlap, the choice of c* and the support S_t (ALGORITHM 2 to 4)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from openclaw_core.losses.config import HintSelection, SubsetMode
from openclaw_core.losses.errors import LossError


@dataclass(frozen=True, slots=True)
class Support:
    """S_t as K ids a position, of which ``mask`` says which belong to it; ids outside are valid but meaningless."""

    ids: Int[Tensor, "T K"]
    mask: Bool[Tensor, "T K"]


@dataclass(frozen=True, slots=True)
class Selection:
    """The choice made for one sample."""

    hint: Int[Tensor, " T"]
    """c*(t), index into the sample's hints."""
    overlap: Int[Tensor, " T"]
    """O[c*(t), t]"""
    support: Support


def select(
    student_ids: Int[Tensor, "T K"],
    teacher_ids: Int[Tensor, "C T K"],
    mask: Bool[Tensor, " T"],
    *,
    hint_selection: HintSelection,
    subset_mode: SubsetMode,
    generator: torch.Generator | None = None,
) -> Selection:
    """Choose the hint and the support of one sample with C >= 1 hints, given S^q and S^p_c. Raises LossError."""
    overlap = overlap_counts(student_ids, teacher_ids)
    hint = choose_hint(overlap, mask, hint_selection, generator)
    positions = torch.arange(hint.shape[0], device=hint.device)
    support = support_ids(student_ids, teacher_ids[hint, positions], subset_mode)
    return Selection(hint=hint, overlap=overlap[hint, positions], support=support)


def overlap_counts(student_ids: Int[Tensor, "T K"], teacher_ids: Int[Tensor, "C T K"]) -> Int[Tensor, "C T"]:
    """O[c, t] = |S^q_t intersect S^p_{t,c}|. Raises LossError for shapes that do not fit or C = 0."""
    if teacher_ids.ndim != 3 or teacher_ids.shape[0] == 0 or teacher_ids.shape[1:] != student_ids.shape:
        raise LossError(
            f"teacher_ids {tuple(teacher_ids.shape)} with student_ids {tuple(student_ids.shape)}; expected [C, T, K] with "
            "C >= 1 and [T, K]; a sample without hints has no support"
        )
    return _shared(student_ids, teacher_ids).sum(-1)


def choose_hint(
    overlap: Int[Tensor, "C T"],
    mask: Bool[Tensor, " T"],
    mode: HintSelection,
    generator: torch.Generator | None = None,
) -> Int[Tensor, " T"]:
    """c*(t). Among equals the first, hence the shortest hint, wins. ``random`` draws once per sample from ``generator``."""
    hints, positions = overlap.shape
    match mode:
        case "shortest":
            return overlap.new_zeros(positions)
        case "token_optimal":
            return overlap.argmax(0)
        case "sequence_optimal":
            return (overlap * mask).sum(1).argmax().expand(positions)
        case "random":
            if generator is None:
                raise LossError("hint_selection 'random' needs a seeded torch.Generator, or a run could not be repeated")
            return torch.randint(hints, (1,), generator=generator).to(overlap.device).expand(positions)


def support_ids(student_ids: Int[Tensor, "T K"], teacher_ids: Int[Tensor, "T K"], mode: SubsetMode) -> Support:
    """S_t from S^q_t and the chosen hint's S^p_{t,c*}."""
    everything = torch.ones_like(student_ids, dtype=torch.bool)
    match mode:
        case "student":
            return Support(student_ids, everything)
        case "teacher":
            return Support(teacher_ids, everything)
        case "overlap":
            return Support(student_ids, _shared(student_ids, teacher_ids))


def _shared(ids: Int[Tensor, "*#b K"], others: Int[Tensor, "*b K"]) -> Bool[Tensor, "*b K"]:
    """Which of ``ids`` occur among ``others`` of the same row."""
    return (ids[..., :, None] == others[..., None, :]).any(-1)
