"""Choice of hint and support, as properties."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from openclaw_core.losses import LossError, select
from openclaw_core.losses.selection import choose_hint, overlap_counts, support_ids

unhurried = settings(deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow])
"""The cores are shared: how long an example takes says nothing about the code."""

MODES = ["shortest", "token_optimal", "sequence_optimal"]


@st.composite
def topk_ids(draw: st.DrawFn) -> tuple[Tensor, Tensor, Tensor]:
    """student_ids [T, K], teacher_ids [C, T, K] and a mask; few distinct ids, so that ties are common."""
    hints, positions, k = draw(st.integers(1, 4)), draw(st.integers(1, 5)), draw(st.integers(1, 4))
    row = st.permutations(range(6)).map(lambda order: order[:k])
    student = draw(st.lists(row, min_size=positions, max_size=positions))
    teacher = draw(st.lists(st.lists(row, min_size=positions, max_size=positions), min_size=hints, max_size=hints))
    mask = draw(st.lists(st.booleans(), min_size=positions, max_size=positions))
    return torch.tensor(student), torch.tensor(teacher), torch.tensor(mask)


@unhurried
@given(topk_ids())
def test_overlap_counts_shared_ids(case: tuple[Tensor, Tensor, Tensor]) -> None:
    student, teacher, _ = case
    expected = [[len(set(s) & set(t)) for s, t in zip(student.tolist(), hint, strict=True)] for hint in teacher.tolist()]
    assert overlap_counts(student, teacher).tolist() == expected


@unhurried
@given(topk_ids())
def test_the_first_maximum_wins_hence_the_shortest_hint(case: tuple[Tensor, Tensor, Tensor]) -> None:
    student, teacher, mask = case
    overlap = overlap_counts(student, teacher)
    by_token = [column.index(max(column)) for column in overlap.T.tolist()]
    totals = [sum(o for o, m in zip(row, mask.tolist(), strict=True) if m) for row in overlap.tolist()]
    assert choose_hint(overlap, mask, "shortest").tolist() == [0] * len(mask)
    assert choose_hint(overlap, mask, "token_optimal").tolist() == by_token
    assert choose_hint(overlap, mask, "sequence_optimal").tolist() == [totals.index(max(totals))] * len(mask)


@unhurried
@given(topk_ids(), st.sampled_from(MODES))
def test_a_repeated_hint_changes_nothing(case: tuple[Tensor, Tensor, Tensor], mode: Any) -> None:
    student, teacher, mask = case
    once = choose_hint(overlap_counts(student, teacher), mask, mode)
    twice = choose_hint(overlap_counts(student, torch.cat([teacher, teacher])), mask, mode)
    assert torch.equal(once, twice)


@unhurried
@given(topk_ids(), st.integers(0, 1000))
def test_random_is_one_hint_a_sample_and_repeats_with_its_seed(case: tuple[Tensor, Tensor, Tensor], seed: int) -> None:
    student, teacher, mask = case
    overlap = overlap_counts(student, teacher)
    first, again = (choose_hint(overlap, mask, "random", torch.Generator().manual_seed(seed)) for _ in range(2))
    assert torch.equal(first, again)
    assert first.unique().numel() == 1 and 0 <= int(first[0]) < len(teacher)


def test_random_reaches_every_hint() -> None:
    overlap, mask = torch.zeros(3, 2, dtype=torch.int64), torch.ones(2, dtype=torch.bool)
    generator = torch.Generator().manual_seed(0)
    assert {int(choose_hint(overlap, mask, "random", generator)[0]) for _ in range(50)} == {0, 1, 2}


@unhurried
@given(topk_ids(), st.sampled_from(MODES), st.sampled_from(["student", "teacher", "overlap"]))
def test_the_support_is_the_set_of_its_definition(case: tuple[Tensor, Tensor, Tensor], mode: Any, subset: Any) -> None:
    student, teacher, mask = case
    selection = select(student, teacher, mask, hint_selection=mode, subset_mode=subset)
    for t, c in enumerate(selection.hint.tolist()):
        s, p = set(student[t].tolist()), set(teacher[c, t].tolist())
        chosen = selection.support.ids[t][selection.support.mask[t]].tolist()
        assert len(chosen) == len(set(chosen))
        assert set(chosen) == {"student": s, "teacher": p, "overlap": s & p}[subset]
        assert int(selection.overlap[t]) == len(s & p)


def test_a_disjoint_overlap_is_empty() -> None:
    support = support_ids(torch.tensor([[1, 2]]), torch.tensor([[3, 4]]), "overlap")
    assert support.ids.shape == (1, 2) and not support.mask.any()


def test_random_without_a_generator_is_refused() -> None:
    with pytest.raises(LossError, match=r"needs a seeded torch\.Generator"):
        choose_hint(torch.zeros(2, 3), torch.ones(3, dtype=torch.bool), "random")


@pytest.mark.parametrize("teacher", [torch.zeros(0, 3, 2), torch.zeros(2, 3, 4), torch.zeros(3, 2)])
def test_teacher_ids_that_do_not_fit_are_refused(teacher: Tensor) -> None:
    with pytest.raises(LossError, match="expected"):
        overlap_counts(torch.zeros(3, 2), teacher)
