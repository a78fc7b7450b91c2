"""Verdicts: rules on numbers by hand. On runs that were really ill: test_health_recordings."""

from __future__ import annotations

from typing import Any

import pytest

from openclaw_core.config import ConfigError, RunConfig, load_config, preset_names
from openclaw_core.health import RULES, Finding, State, assess


def config(preset: str = "4b-2nodes", **limits: Any) -> RunConfig:
    return load_config(preset, {f"health.{name.replace('__', '.')}": value for name, value in limits.items()})


def rows(metric: str, *values: float | None) -> list[dict[str, Any]]:
    return [{"step": step, metric: value} for step, value in enumerate(values, start=1)]


def found(metric: str, *values: float | None, **limits: Any) -> dict[str, Finding]:
    return {finding.rule: finding for finding in assess(rows(metric, *values), config(**limits)).findings}


GRAD = "train/grad_norm"


def test_before_the_first_step_a_run_is_well():
    verdict = assess([], config())
    assert (verdict.step, verdict.state, verdict.findings) == (0, State.HEALTHY, ())


def test_a_level_is_said_after_so_many_steps_in_a_row_and_since_the_first_of_them():
    assert not found(GRAD, 3, 11, 11)
    finding = found(GRAD, 3, 11, 12, 13)["grad_norm_high"]
    assert (finding.since, finding.value, finding.bound, finding.state) == (2, 13, 10, State.WARN)
    assert str(finding).startswith("Gradients are large: grad_norm = 13, over 10, since step 2; healthy is 2 to 5")


def test_a_step_within_the_bound_begins_the_count_anew():
    assert not found(GRAD, 11, 11, 9, 11, 11)


def test_a_finding_stays_until_so_many_steps_in_a_row_are_well():
    ill = [11.0] * 3
    assert found(GRAD, *ill, 5, 5)["grad_norm_high"].since == 1
    assert found(GRAD, *ill, 5, 5, 11, 5, 5)["grad_norm_high"].since == 1
    assert not found(GRAD, *ill, 5, 5, 5)
    assert found(GRAD, *ill, 5, 5, 5, *ill)["grad_norm_high"].since == 7
    assert not found(GRAD, *ill, 5, clear_after=1)


def test_null_is_no_evidence():
    assert found(GRAD, 11, None, 11, None, 11)["grad_norm_high"].since == 1
    assert found(GRAD, 11, 11, 11, None, None, None, None)["grad_norm_high"].value == 11
    assert not assess([{"step": 1}, {"step": 2}], config()).findings


def test_not_a_number_is_ill():
    assert "grad_norm_diverging" in found(GRAD, *[float("nan")] * 3)


def test_the_worst_finding_is_the_state():
    verdict = assess(rows(GRAD, 99, 99, 99), config())
    assert [finding.rule for finding in verdict.findings] == ["grad_norm_high", "grad_norm_diverging"]
    assert verdict.state is State.STOP


def test_growth_is_held_against_the_runs_own_beginning():
    length = "rollout/response_len"
    beginning = [100, 90, 400, 110, 105]  # median 105: one odd value does no harm
    assert found(length, *beginning, 211, 212, 213)["response_growing"].bound == 210
    assert not found(length, *beginning, 209, 209, 209)
    assert not found(length, 100, 300, 300, 300), "too young to say"
    assert found(length, *beginning, 41, 41, 41)["response_shrinking"].bound == 42


def test_growth_within_the_noise_is_none():
    parity = "train/engine_parity_abs_diff"
    assert not found(parity, *[1e-7] * 5, *[4e-3] * 5), "fp32: rounding"
    assert "engine_parity_growing" in found(parity, *[1e-7] * 5, *[6e-3] * 3)


def test_the_reward_is_held_against_the_best_so_far():
    reward = "rollout/reward_mean"
    assert not found(reward, *[-0.5] * 5, *[-1.0] * 9)
    finding = found(reward, *[-0.5] * 5, *[0.5] * 5, *[-0.3] * 5)["reward_collapsing"]
    assert (finding.since, finding.bound) == (11, -0.25)


def test_a_skipped_update_is_said_at_once_and_withdrawn_when_none_follows():
    skipped = "train/skipped_steps"
    assert found(skipped, 0, 1)["step_skipped"].since == 2
    assert found(skipped, 1)["step_skipped"].since == 1
    assert found(skipped, 0, 1, 1, 1)
    assert not found(skipped, 0, 1, 1, 1, 1)


def test_saturation_is_in_units_of_the_clip():
    opd = "train/opd_abs_mean"
    saturated = load_config("4b-2nodes", {"loss.adv_diff_clip": 0.5})
    verdict = assess(rows(opd, *[0.48] * 5), saturated)
    assert {finding.rule for finding in verdict.findings} == {"opd_strong", "opd_saturated"}
    assert found(opd, *[0.48] * 5) == {}
    without = load_config("4b-2nodes", {"loss.adv_diff_clip": 0})
    assert not assess(rows(opd, *[40.0] * 5), without).findings
    assert "opd_saturated: OPD saturated: opd_abs_mean = 1, over 0.95, since step 1; check that the maximum" in "; ".join(
        f"{rule}: {finding}" for rule, finding in found(opd, *[1.0] * 5).items()
    )


def test_a_rule_is_switched_off_by_a_bound_of_null():
    assert not found(GRAD, 99, 99, 99, limits__grad_norm_high__bound=None, limits__grad_norm_diverging__bound=None)


def test_a_bound_alone_keeps_the_rules_steps():
    limits = config(limits__opd_saturated__bound=0.5).health.limits
    assert (limits.opd_saturated.bound, limits.opd_saturated.steps) == (0.5, 5)
    assert limits.grad_norm_high == config().health.limits.grad_norm_high


@pytest.mark.parametrize("preset", preset_names())
def test_every_rule_has_a_limit_in_every_preset(preset: str):
    limits = dict(config(preset).health.limits)
    assert list(limits) == [rule.name for rule in RULES]


def test_a_limit_of_no_rule_is_refused():
    with pytest.raises(ConfigError, match=r"no parameter 'health.limits.grad_nrom.bound'; did you mean"):
        config(limits__grad_nrom__bound=3)
    with pytest.raises(ConfigError, match=r"health.limits.grad_norm_high.steps: Input should be greater than or equal to 1"):
        config(limits__grad_norm_high__steps=0)
