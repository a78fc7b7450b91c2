"""What follows from a verdict: the action, who is told, and the weight that the next step is trained with."""

from __future__ import annotations

import json
from typing import Any

import pytest

from openclaw_core.config import ConfigError, RunConfig, load_config
from openclaw_core.health import Health, examine, w_opd_in_force


def config(**health: Any) -> RunConfig:
    return load_config("4b-2nodes", {f"health.{name}": value for name, value in health.items()})


def run(config: RunConfig, metric: str, *values: float | None) -> tuple[list[dict[str, Any]], list[Health]]:
    """Steps as the loop does them: each with the weight that the ones before it ask for, and with its verdict."""
    rows: list[dict[str, Any]] = []
    healths: list[Health] = []
    for step, value in enumerate(values, start=1):
        row = {"step": step, metric: value, "train/w_opd": w_opd_in_force(rows[-1] if rows else None, config)}
        healths.append(examine([*rows, row], config))
        rows.append(row | healths[-1].metrics())
    return rows, healths


OPD = "train/opd_abs_mean"


def test_a_change_is_said_once():
    _, healths = run(config(clear_after=2), "train/grad_norm", 3, 11, 11, 11, 11, 60, 60, 60, 3, 3, 3)
    assert [step for step, health in enumerate(healths, start=1) if health.changed] == [4, 8, 10]
    assert [health.action for health in healths if health.changed] == ["notify", "stop", None]
    assert [health.verdict.state for health in healths if health.changed] == ["warn", "stop", "healthy"]
    assert [finding.rule for finding in healths[7].raised] == ["grad_norm_diverging"]
    assert not any(health.action for health in healths if not health.changed)


def test_the_verdict_of_the_last_step_is_the_same_when_it_is_recorded():
    rows, healths = run(config(), "train/grad_norm", *[60] * 5)
    for step in range(1, 6):
        assert examine(rows[:step], config()) == healths[step - 1]


def test_the_record_of_a_step_is_small():
    rows, _ = run(config(), "train/grad_norm", *[60] * 4)
    assert rows[2]["health/state"] == "stop"
    assert rows[2]["health/findings"] == {"grad_norm_high": 1, "grad_norm_diverging": 1}
    assert rows[2]["health/action"] == "stop"
    assert rows[3]["health/action"] is None


def test_what_is_not_a_number_is_no_number_in_json():
    _, healths = run(config(), "train/grad_norm", *[float("nan")] * 3)
    said = json.loads(json.dumps(healths[-1].as_json(), allow_nan=False))
    assert said["findings"][0]["value"] is None
    assert "grad_norm = nan" in said["findings"][0]["text"]


def test_the_strongest_action_counts():
    _, healths = run(config(on_warn="pause", on_stop="notify"), "train/grad_norm", *[60] * 3)
    assert healths[-1].action == "pause"


def test_w_opd_is_halved_while_a_finding_about_opd_holds_down_to_the_floor_and_stays_there():
    rows, healths = run(config(on_warn="lower_w_opd", w_opd_floor=0.2, clear_after=2), OPD, *[0.7] * 6, *[0.1] * 6)
    weights = [row["train/w_opd"] for row in rows]
    assert weights == [1.0, 1.0, 1.0, 0.5, 0.25, 0.2, 0.2, 0.2, 0.2, 0.2, 0.2, 0.2]
    assert healths[2].action == "lower_w_opd"
    assert w_opd_in_force(rows[3], config(on_warn="lower_w_opd", w_opd_floor=0.2)) == weights[4], "from the rows alone"


def test_a_short_illness_costs_as_much_weight_as_it_lasts():
    rows, _ = run(config(on_warn="lower_w_opd", clear_after=1), OPD, *[0.7] * 3, *[0.1] * 4)
    assert [row["train/w_opd"] for row in rows] == [1.0, 1.0, 1.0, 0.5, 0.5, 0.5, 0.5]


def test_what_is_not_about_opd_lowers_nothing():
    rows, healths = run(config(on_warn="lower_w_opd"), "train/grad_norm", *[11] * 5)
    assert healths[2].action == "notify"
    assert {row["train/w_opd"] for row in rows} == {1.0}


def test_nothing_is_lowered_unless_the_policy_says_so():
    rows, _ = run(config(on_stop="notify"), OPD, *[1.0] * 8)
    assert {row["train/w_opd"] for row in rows} == {1.0}


def test_a_record_from_before_there_was_a_weight_in_it_was_trained_with_the_configurations():
    assert w_opd_in_force({"step": 1}, config()) == 1.0


def test_a_floor_that_leaves_nothing_to_lower_is_refused():
    with pytest.raises(ConfigError, match=r"loss.w_opd=0.1 is not above health.w_opd_floor=0.1"):
        load_config("local-cpu", {"health.on_warn": "lower_w_opd", "loss.w_opd": 0.1})
    load_config("local-cpu", {"loss.w_opd": 0})  # nobody lowers it
