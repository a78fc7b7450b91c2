"""The hybrid loss against the plain float64 reference, and its behaviour at the edges."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise, product
from statistics import fmean
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from openclaw_core.losses import HybridInputs, LossConfig, LossError, OpdInputs, add_sums, finish_metrics, hybrid_loss
from tests.unit.loss_case import Case, chunked_loss, expected_loss, hybrid_inputs, loss_config, make_case
from tests.unit.reference_loss import Settings

SELECTIONS = ("shortest", "token_optimal", "sequence_optimal")
SUBSETS = ("student", "teacher", "overlap")
CELLS = [Settings(hint_selection=cast(Any, a), subset_mode=cast(Any, b)) for a, b in product(SELECTIONS, SUBSETS)]
VARIATIONS = {
    "centred": Settings(opd_center=True),
    "no_clip": Settings(adv_diff_clip=0),
    "tight_clip": Settings(adv_diff_clip=0.05, subset_mode="teacher"),
    "opd_only_shaped": Settings(shaped_turns="opd_only", kl_coef=0.3),
    "plain_shaped": Settings(shaped_turns="plain", kl_coef=0.3),
    "no_importance_weight": Settings(tis_clip=0, kl_coef=0.3),
    "reference_kl": Settings(kl_coef=0.3),
    "weights": Settings(w_rl=0.5, w_opd=1.7, kl_coef=0.01),
    "opd_only": Settings(w_rl=0),
    "grpo_only": Settings(w_opd=0),
    "kl_only": Settings(w_rl=0, w_opd=0, kl_coef=1.0),
    "narrow_ratio": Settings(eps_lo=0.01, eps_hi=0.02, subset_mode="overlap", hint_selection="token_optimal", opd_center=True),
}


@pytest.fixture(params=[False, True], ids=["general", "colocated"])
def case(request: pytest.FixtureRequest) -> Case:
    return make_case(colocated=request.param)


def assert_agrees(case: Case, settings: Settings, **how: Any) -> None:
    random_hints, rtol = how.pop("random_hints", ()), how.pop("rtol", 0)
    loss = chunked_loss(case, settings, **how).loss
    expected = expected_loss(case, settings, random_hints).loss
    assert loss.item() == pytest.approx(expected.item(), abs=1e-9, rel=rtol)
    for found, wanted in zip(case.gradients(loss), case.gradients(expected), strict=True):
        torch.testing.assert_close(found, wanted, rtol=rtol, atol=1e-8)


@pytest.mark.parametrize("settings", CELLS, ids=lambda s: f"{s.hint_selection}-{s.subset_mode}")
def test_each_cell_equals_the_reference(case: Case, settings: Settings) -> None:
    assert_agrees(case, settings)


@pytest.mark.parametrize("settings", VARIATIONS.values(), ids=VARIATIONS)
def test_each_setting_equals_the_reference(case: Case, settings: Settings) -> None:
    assert_agrees(case, settings)


@pytest.mark.parametrize("chunk", [1, 2, 5, 1000])
def test_the_chunk_size_changes_nothing(case: Case, chunk: int) -> None:
    assert_agrees(case, Settings(kl_coef=0.3), chunk=chunk)


@pytest.mark.parametrize("subset", SUBSETS)
def test_random_hints_come_once_per_sample_from_the_seeded_generator(case: Case, subset: Any) -> None:
    generator = torch.Generator().manual_seed(3)
    counts = [len(sample.h_teacher) for sample in case.samples]
    hints = [int(torch.randint(count, (1,), generator=generator)) if count else 0 for count in counts]
    assert any(hints)
    assert_agrees(case, Settings(hint_selection="random", subset_mode=subset), seed=3, random_hints=hints)


def test_extreme_ratios_are_clamped_as_in_the_reference() -> None:
    """log rho beyond +-20 and ref - cur beyond +-10 have a finite loss and no gradient."""
    case = make_case(drift=8.0)
    inputs = hybrid_inputs(case, Settings())
    assert inputs.ref_logp is not None
    assert (inputs.cur_logp - inputs.old_logp).abs().max() > 20 and (inputs.cur_logp - inputs.ref_logp).abs().max() > 10
    assert_agrees(case, Settings(kl_coef=0.3), rtol=1e-12)


def test_the_nine_cells_differ() -> None:
    """Otherwise agreement with the reference would not tell them apart."""
    losses = {round(chunked_loss(make_case(), settings).loss.item(), 9) for settings in CELLS}
    assert len(losses) == len(CELLS)


def test_an_error_in_one_score_is_noticed(case: Case) -> None:
    """The comparison above can fail."""
    settings = Settings()
    inputs = hybrid_inputs(case, settings)
    assert inputs.opd is not None
    shifted = replace(inputs, opd=replace(inputs.opd, teacher_logp=inputs.opd.teacher_logp + 0.01))
    wrong = hybrid_loss(shifted, loss_config(settings)).loss
    assert abs(wrong.item() - expected_loss(case, settings).loss.item()) > 1e-6


@pytest.mark.parametrize("settings", [Settings(kl_coef=0.3), VARIATIONS["opd_only_shaped"], VARIATIONS["plain_shaped"]])
def test_metrics_equal_the_reference(case: Case, settings: Settings) -> None:
    metrics = finish_metrics(chunked_loss(case, settings).sums, single_step=False)
    expected = expected_loss(case, settings)
    cap = settings.tis_clip
    assert metrics == pytest.approx(
        {
            "grpo_loss": expected.grpo,
            "opd_loss": expected.opd,
            "kl": expected.kl,
            "entropy": fmean(expected.entropy),
            "tis_mean": fmean(expected.importance),
            "tis_clipfrac": fmean(c == cap for c in expected.importance),
            "ppo_kl": fmean(expected.old_minus_cur),
            "grpo_clipfrac": fmean(expected.grpo_clipped),
            "opd_clipfrac": fmean(expected.opd_clipped),
            "opd_abs_mean": fmean(expected.opd_abs),
            "sel_overlap": fmean(expected.overlap),
            "subset_size": fmean(expected.subset_size),
            "c_star_mean": fmean(expected.c_star),
            "train_rollout_logprob_abs_diff_shaped": fmean(expected.logprob_diff[True]),
            "train_rollout_logprob_abs_diff_unshaped": fmean(expected.logprob_diff[False]),
        },
        abs=1e-12,
    )


@pytest.mark.parametrize("cuts", [(1,), (2, 4), (1, 2, 3, 4)])
def test_micro_batches_add_up_to_the_whole(case: Case, cuts: tuple[int, ...]) -> None:
    settings = Settings(kl_coef=0.3)
    whole = chunked_loss(case, settings)
    edges = [0, *cuts, len(case.samples)]
    parts = [chunked_loss(case, settings, part=slice(a, b)) for a, b in pairwise(edges)]
    loss = torch.stack([part.loss for part in parts]).sum()
    torch.testing.assert_close(loss, whole.loss, rtol=0, atol=1e-14)
    for found, wanted in zip(case.gradients(loss), case.gradients(whole.loss), strict=True):
        torch.testing.assert_close(found, wanted, rtol=0, atol=1e-14)
    assert finish_metrics(add_sums(part.sums for part in parts), single_step=False) == pytest.approx(
        finish_metrics(whole.sums, single_step=False), abs=1e-12
    )


def test_gradcheck_of_the_general_form() -> None:
    """Off the kinks, where the loss is smooth in cur_logp."""
    settings = Settings(kl_coef=0.3, eps_lo=0.05, eps_hi=0.05)
    fixed = hybrid_inputs(make_case(), settings)
    opd = fixed.opd
    assert opd is not None
    generator = torch.Generator().manual_seed(5)

    def off_the_kinks(old: Tensor) -> Tensor:
        """rho at one of 0.85, 1 and 1.2, every one well inside its branch."""
        choice = torch.tensor([0.85, 1.0, 1.2], dtype=torch.float64).log()
        return (old + choice[torch.randint(3, old.shape, generator=generator)]).requires_grad_()

    def loss(cur: Tensor, cur_support: Tensor) -> Tensor:
        return hybrid_loss(replace(fixed, cur_logp=cur, opd=replace(opd, cur_logp=cur_support)), loss_config(settings)).loss

    assert torch.autograd.gradcheck(loss, (off_the_kinks(fixed.old_logp), off_the_kinks(opd.old_logp)))


def leaf_inputs() -> tuple[HybridInputs, OpdInputs, Tensor, Tensor]:
    """A case's inputs with log-probs as leaves."""
    inputs = hybrid_inputs(make_case(), Settings(kl_coef=0.3))
    assert inputs.opd is not None
    cur, cur_support = inputs.cur_logp.detach().requires_grad_(), inputs.opd.cur_logp.detach().requires_grad_()
    opd = replace(inputs.opd, cur_logp=cur_support)
    return replace(inputs, cur_logp=cur, opd=opd), opd, cur, cur_support


@pytest.mark.parametrize("junk", [0.0, 1e300, -1e300, torch.inf, torch.nan])
def test_values_that_do_not_count_give_no_loss_and_no_gradient(junk: float) -> None:
    inputs, opd, cur, cur_support = leaf_inputs()
    config = loss_config(Settings(kl_coef=0.3, subset_mode="overlap"))
    counts = inputs.mask
    pairs = (counts & opd.has_hint)[:, None] & opd.support
    assert not counts.all() and not pairs.all()
    clean = hybrid_loss(inputs, config)
    wanted = torch.autograd.grad(clean.loss, (cur, cur_support))

    with torch.no_grad():
        cur[~counts], cur_support[~pairs] = junk, junk
    spoilt = {name: getattr(inputs, name).where(counts, junk) for name in ("old_logp", "rollout_logp", "advantage", "entropy")}
    spoilt |= {"ref_logp": cast(Tensor, inputs.ref_logp).where(counts, junk), "weight": inputs.weight.where(counts, junk)}
    spoilt_opd = replace(opd, old_logp=opd.old_logp.where(pairs, junk), teacher_logp=opd.teacher_logp.where(pairs, junk))
    found = hybrid_loss(replace(inputs, opd=spoilt_opd, **spoilt), config)
    grads = torch.autograd.grad(found.loss, (cur, cur_support))

    assert torch.equal(found.loss, clean.loss)
    assert all(torch.equal(a, b) for a, b in zip(grads, wanted, strict=True))
    assert not grads[0][~counts].any() and not grads[1][~pairs].any()
    assert {k: float(v) for k, v in found.sums.items()} == {k: float(v) for k, v in clean.sums.items()}


def test_an_empty_support_gives_no_opd_term_but_stays_in_the_denominator() -> None:
    inputs, opd, _, _ = leaf_inputs()
    empty = replace(inputs, opd=replace(opd, support=torch.zeros_like(opd.support)))
    output = hybrid_loss(empty, loss_config(Settings(w_rl=0)))
    metrics = finish_metrics(output.sums, single_step=False)
    assert output.loss.item() == 0 and metrics["opd_loss"] == 0 and metrics["subset_size"] == 0
    assert metrics["opd_clipfrac"] is None


def test_a_sample_without_unmasked_tokens_gives_zero_and_counts_in_n() -> None:
    case, settings = make_case(), Settings(kl_coef=0.3)
    silent = next(i for i, sample in enumerate(case.samples) if not any(sample.mask))
    alone = chunked_loss(case, settings, part=slice(silent, silent + 1))
    assert alone.loss.item() == 0
    assert not any(grad.any() for grad in case.gradients(alone.loss))
    without = Case([s for i, s in enumerate(case.samples) if i != silent], case.w_cur, case.w_old, case.w_ref)
    torch.testing.assert_close(chunked_loss(without, settings).loss, chunked_loss(case, settings).loss, rtol=0, atol=1e-15)


def test_a_micro_batch_that_trains_nothing_can_still_be_run_backward() -> None:
    inputs, _, cur, _ = leaf_inputs()
    output = hybrid_loss(replace(inputs, mask=torch.zeros_like(inputs.mask)), loss_config(Settings(kl_coef=0.3)))
    output.loss.backward()
    assert output.loss.item() == 0 and cur.grad is not None and not cur.grad.any()


def test_old_log_probs_never_carry_a_gradient() -> None:
    """In the colocated form they come out of the same forward: without a detach, rho would be 1 with gradient 0."""
    inputs, opd, cur, cur_support = leaf_inputs()
    same = replace(inputs, old_logp=cur, opd=replace(opd, old_logp=cur_support))
    detached = replace(inputs, old_logp=cur.detach(), opd=replace(opd, old_logp=cur_support.detach()))
    found, wanted = (
        torch.autograd.grad(hybrid_loss(x, loss_config(Settings())).loss, (cur, cur_support)) for x in (same, detached)
    )
    assert wanted[0].any() and wanted[1].any()
    assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))


@pytest.mark.parametrize("name", ["old_logp", "rollout_logp", "advantage", "entropy", "weight", "ref_logp"])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_a_non_finite_score_that_counts_is_refused_by_name(name: str, bad: float) -> None:
    inputs, _, _, _ = leaf_inputs()
    row = int(inputs.mask.nonzero()[-1])
    value = cast(Tensor, getattr(inputs, name)).detach().clone()
    value[row] = bad
    with pytest.raises(LossError, match=rf"{name} has 1 non-finite.*row {row}"):
        hybrid_loss(replace(inputs, **{name: value}), loss_config(Settings(kl_coef=0.3)))


@pytest.mark.parametrize("name", ["old_logp", "teacher_logp"])
def test_a_non_finite_teacher_score_that_counts_is_refused_by_name(name: str) -> None:
    inputs, opd, _, _ = leaf_inputs()
    value = getattr(opd, name).clone()
    value[0, 1] = torch.nan
    with pytest.raises(LossError, match=rf"opd\.{name} has 1 non-finite.*row 0"):
        hybrid_loss(replace(inputs, opd=replace(opd, **{name: value})), loss_config(Settings()))


def test_a_term_without_its_inputs_is_refused() -> None:
    inputs, _, _, _ = leaf_inputs()
    with pytest.raises(LossError, match=r"kl_coef=0\.3 needs ref_logp"):
        hybrid_loss(replace(inputs, ref_logp=None), loss_config(Settings(kl_coef=0.3)))
    with pytest.raises(LossError, match=r"w_opd=1\.0 needs the opd inputs"):
        hybrid_loss(replace(inputs, opd=None), loss_config(Settings()))
    hybrid_loss(replace(inputs, ref_logp=None, opd=None), loss_config(Settings(w_opd=0)))


@pytest.mark.parametrize(
    "name", ["cur_logp", "old_logp", "rollout_logp", "advantage", "entropy", "weight", "shaped", "ref_logp"]
)
def test_a_score_of_another_shape_is_refused_by_name(name: str) -> None:
    """A column [n, 1] would broadcast to [n, n] without an error."""
    inputs, _, _, _ = leaf_inputs()
    with pytest.raises(LossError, match=rf"^{name} has shape \(18, 1\); expected \(18,\)"):
        hybrid_loss(replace(inputs, **{name: getattr(inputs, name)[:, None]}), loss_config(Settings(kl_coef=0.3)))


@pytest.mark.parametrize("name", ["cur_logp", "old_logp", "teacher_logp", "has_hint", "hint", "overlap"])
def test_a_teacher_score_of_another_shape_is_refused_by_name(name: str) -> None:
    inputs, opd, _, _ = leaf_inputs()
    with pytest.raises(LossError, match=rf"^opd\.{name} has shape"):
        hybrid_loss(replace(inputs, opd=replace(opd, **{name: getattr(opd, name)[:1]})), loss_config(Settings()))


def test_a_mask_of_numbers_is_refused() -> None:
    inputs, opd, _, _ = leaf_inputs()
    with pytest.raises(LossError, match=r"^mask is torch\.int64; expected torch\.bool"):
        hybrid_loss(replace(inputs, mask=inputs.mask.long()), loss_config(Settings()))
    with pytest.raises(LossError, match=r"^opd\.support is torch\.float64"):
        hybrid_loss(replace(inputs, opd=replace(opd, support=opd.support.double())), loss_config(Settings()))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"entropy_coef": 0.1}, "entropy bonus is not implemented"),
        ({"w_rl": 0, "w_opd": 0, "kl_coef": 0}, "nothing would be trained"),
    ],
)
def test_settings_without_a_gradient_are_refused(values: dict[str, float], message: str) -> None:
    with pytest.raises(LossError, match=message):
        LossConfig(**values)  # pyright: ignore[reportArgumentType]
