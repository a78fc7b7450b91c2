"""docs/HEALTH.md says what the code does."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from prefect.events.schemas.automations import AutomationCore, EventTrigger

from openclaw_core.config import load_config, preset_names
from openclaw_core.config.env import EXTERNAL_KEYS, WEBHOOK
from openclaw_core.health import RULES, Kind, Rule, State
from openclaw_core.health.rules import BASELINE

DOCS = Path(__file__).parents[2] / "docs"
TEXT = (DOCS / "HEALTH.md").read_text()
ASCEND, LOCAL = ("4b-1node", "4b-2nodes", "32b-8nodes"), ("local-cpu", "2nodes-sim")
WHEN = {
    Kind.ABOVE: "over",
    Kind.BELOW: "under",
    Kind.GROWN: "over × beginning",
    Kind.FALLEN: "under × beginning",
    Kind.LOST: "best less",
    Kind.COUNTED_UP: "counts up by more than",
}


def bound(rule: Rule, preset: str) -> str:
    limit = dict(load_config(preset).health.limits)[rule.name]
    if limit.bound is None:
        return "off"
    return f"{limit.bound:g}{' C' if rule.times_clip else ''}"


def row(rule: Rule) -> str:
    steps = dict(load_config("4b-2nodes").health.limits)[rule.name].steps
    bounds = f"{bound(rule, ASCEND[0])} | {bound(rule, LOCAL[0])}"
    means = f"{rule.reason}; {rule.advice}"
    return f"| `{rule.name}` | `{rule.metric}` | {WHEN[rule.kind]} | {bounds} | {steps} | {rule.state} | {means} |"


def test_the_table_is_that_of_the_code():
    table = [line for line in TEXT.splitlines() if line.startswith("| `")]
    assert [line for line in table if line.count("|") == 9] == [row(rule) for rule in RULES]


@pytest.mark.parametrize("presets", [ASCEND, LOCAL])
def test_a_column_holds_for_each_of_its_presets(presets: tuple[str, ...]):
    assert len({load_config(preset).health.model_dump_json() for preset in presets}) == 1
    assert set(ASCEND + LOCAL) == set(preset_names())


def test_the_words_around_it_are_true():
    health = load_config("local-cpu").health
    assert f"`health.clear_after` ({health.clear_after})" in TEXT
    assert f"first {BASELINE} values" in TEXT
    assert f"| `health.on_warn` | {health.on_warn} |" in TEXT and f"| `health.on_stop` | {health.on_stop} |" in TEXT
    assert f"`health.w_opd_floor` ({health.w_opd_floor})" in TEXT
    assert EXTERNAL_KEYS[WEBHOOK][0] in TEXT


def test_the_automation_is_one_that_prefect_takes():
    (written,) = yaml.safe_load(TEXT.partition("```yaml\n")[2].partition("```")[0])["automations"]
    automation = AutomationCore.model_validate(written)
    assert isinstance(automation.trigger, EventTrigger)
    assert automation.trigger.expect == {f"openclaw.health.{state}" for state in State if state is not State.HEALTHY}
    assert automation.actions[0].type == "send-notification"


def test_the_metrics_of_health_are_documented():
    metrics = (DOCS / "METRICS.md").read_text()
    for key in ("health/state", "health/findings", "health/action", "train/w_opd"):
        assert f"`{key}`" in metrics
    undocumented = {rule.metric for rule in RULES if f"`{rule.metric}`" not in metrics}
    assert undocumented == {
        "train/train_rollout_logprob_abs_diff_shaped",  # named there by its ending
    }
