"""The per-token table of a real step: the numbers of the formulas, and no influence on the gradient."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from openclaw_core.trainer.token_table import SampleTokens
from tests.integration.step_case import Job, Models, run_jobs
from tests.integration.test_colocated_step import expected, make_samples, settings_of
from tests.models import tiny_llama

MODES: list[dict[str, Any]] = [
    {"loss.hint_selection": "sequence_optimal"},
    {"loss.subset_mode": "teacher", "loss.hint_selection": "token_optimal", "loss.adv_diff_clip": 0.3},
    {"loss.subset_mode": "overlap", "loss.opd_center": True, "loss.shaped_turns": "opd_only"},
]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """One start of a rank for all: each mode, the first without tables, and one that masks samples."""
    overrides = [*MODES, {**MODES[0], "train.token_tables": 0}, {"loss.max_logprob_diff": 1e-3}]
    job = Job(Models.make(tiny_llama, tied=True), make_samples(), [{"overrides": each} for each in overrides])
    (found,) = run_jobs([job], tmp_path_factory.mktemp("tables"))
    return found


def test_tables_do_not_change_a_bit_of_the_gradient(results: Any) -> None:
    kept, none = results[0], results[len(MODES)]
    assert len(kept.table) == len(make_samples()) and none.tables == [[]]
    assert kept.loss == none.loss and kept.metrics == none.metrics
    assert kept.gradients.keys() == none.gradients.keys()
    assert all(torch.equal(gradient, none.gradients[name]) for name, gradient in kept.gradients.items())


@pytest.mark.parametrize("mode", range(len(MODES)))
def test_the_numbers_are_those_of_the_formulas(results: Any, mode: int) -> None:
    samples, table = make_samples(), results[mode].table
    settings = settings_of(MODES[mode])
    reference, _ = expected(Models.make(tiny_llama, tied=True), samples, settings)
    supports, c_star, overlap = iter(reference.supports), iter(reference.c_star), iter(reference.overlap)
    importance, gaps = iter(reference.importance), {flag: iter(x) for flag, x in reference.logprob_diff.items()}

    for sample in samples:
        found: SampleTokens = table[sample.sample_id]
        columns = found.columns
        assert found.masked is None and found.hints == sample.hints
        assert columns.token.tolist() == list(sample.response_ids)
        np.testing.assert_allclose(columns.rollout_logp, sample.rollout_logprobs, rtol=1e-6)
        assert columns.trained.tolist() == [bool(value) for value in sample.loss_mask]
        assert (columns.advantage == sample.reward).all()
        rewarded = not (sample.shaped and settings.shaped_turns == "opd_only")
        assert columns.ids.shape == (len(sample.response_ids), 4 if sample.hints else 0)
        for t in np.flatnonzero(columns.trained):
            gap = abs(columns.old_logp[t] - columns.rollout_logp[t])
            assert gap == pytest.approx(next(gaps[sample.shaped]), abs=1e-4)
            assert columns.rewarded[t] == rewarded
            if rewarded:
                assert columns.importance[t] == pytest.approx(next(importance), rel=1e-4)
            if sample.hints:
                assert (columns.hint[t], columns.overlap[t]) == (next(c_star), next(overlap))
                assert_support(columns, t, next(supports))
        assert not columns.token_advantage[~columns.trained].any()
    assert all(next(left, None) is None for left in (supports, c_star, overlap, importance, *gaps.values()))


def assert_support(columns: Any, t: int, wanted: dict[int, tuple[float, ...]]) -> None:
    names = ("student_logp", "teacher_logp", "delta", "weight", "token_advantage")
    held = np.flatnonzero(columns.support[t])
    found = {int(columns.ids[t, k]): tuple(float(getattr(columns, name)[t, k]) for name in names) for k in held}
    assert found.keys() == wanted.keys()
    for v, numbers in wanted.items():
        assert found[v] == pytest.approx(numbers, abs=1e-4)


def test_a_masked_sample_says_why(results: Any) -> None:
    for sample in make_samples():
        found, counted = results[-1].table[sample.sample_id], any(sample.loss_mask)
        assert found.masked == ("logprob_mismatch" if counted else None)
        assert not found.columns.trained.any() and not found.columns.rewarded.any() and not found.columns.weight.any()
