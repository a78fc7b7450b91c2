"""The form of a deployment in the browser, and the API behind it."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import Page, expect

from flows.form import AS_PRESET, SET_HERE
from tests.ui.browser import field, shoot
from tests.ui.cockpit import Cockpit

pytestmark = [pytest.mark.ui, pytest.mark.timeout(1200)]

GROUPS = ("rollout", "loss", "optimizer", "train", "judge", "feeder", "evaluation", "health", "tracking", "ports")


def set_here(page: Page, *groups: str) -> None:
    for group in groups:
        field(page, group).get_by_text(SET_HERE, exact=True).first.click()


def test_the_form_explains_its_fields(cockpit: Cockpit, page: Page):
    page.goto(cockpit.form)
    for name in ("preset", "steps", "cluster", "judge_key", *GROUPS, "overrides", "dry_run"):
        expect(field(page, name)).to_be_attached()
    expect(field(page, "rollout").get_by_text("How answers are sampled and collected into batches.")).to_be_visible()
    expect(field(page, "judge_key").get_by_text("Name of a Secret block")).to_be_visible()
    expect(field(page, "rollout").get_by_text(AS_PRESET, exact=True)).to_be_visible()
    set_here(page, "rollout")
    field(page, "batch_size").locator("input").fill("8")
    for explanation in ("Samples with a signal per step", "whole number ≥ 1", "4 in 2nodes-sim"):
        expect(field(page, "batch_size")).to_contain_text(explanation)
    page.get_by_text("judge_key (Optional)", exact=True).evaluate("label => label.scrollIntoView({block: 'start'})")
    shoot(page, "form")


def test_a_value_out_of_its_bounds_is_refused_in_the_form(cockpit: Cockpit, page: Page):
    page.goto(cockpit.form)
    before = len(cockpit.runs())
    set_here(page, "rollout")
    field(page, "batch_size").locator("input").fill("0")
    page.get_by_role("button", name="Submit").click()
    refusal = "Validation failed for field 'rollout.batch_size'. Failure reason: 0 is less than the minimum of 1"
    expect(page.get_by_text(refusal).first).to_be_visible()
    shoot(page, "form-refused")
    assert page.url == cockpit.form
    assert len(cockpit.runs()) == before


def test_the_form_sends_what_was_set_and_nothing_else(cockpit: Cockpit, page: Page):
    """A field that nobody has touched must not replace what the preset says."""
    page.goto(cockpit.form)
    set_here(page, *GROUPS)
    field(page, "batch_size").locator("input").fill("8")
    field(page, "lr").locator("input").fill("0.00003")
    field(page, "run_id").locator("textarea").fill("from-the-form")
    dry_run = field(page, "dry_run").get_by_role("switch")
    dry_run.click()
    expect(dry_run).to_have_attribute("aria-checked", "true")
    with page.expect_response(lambda response: response.url.endswith("/create_flow_run")) as created:
        page.get_by_role("button", name="Submit").click()
    assert created.value.status == 201, created.value.text()
    run = created.value.json()
    sent = {name: value for name, value in run["parameters"].items() if value}
    told = {"rollout": {"batch_size": 8}, "optimizer": {"lr": 0.00003}, "run_id": "from-the-form", "dry_run": True}
    assert sent == {"preset": "local-cpu", **told}
    assert cockpit.wait(run["id"], "Completed")["name"] == "from-the-form"
    assert "dry-run" in cockpit.artifacts(run["id"])


@pytest.mark.parametrize(
    ("parameters", "reason"),
    [
        ({"preset": "local-gpu"}, "field 'preset'. Failure reason: 'local-gpu' is not one of"),
        ({"steps": 0}, "field 'steps'. Failure reason: 0 is less than the minimum of 1"),
        ({"judge": {"votes": 16}}, "field 'judge.votes'. Failure reason: 16 is greater than the maximum of 15"),
        (
            {"rollout": {"batch_sizes": 8}},
            "field 'rollout'. Failure reason: Additional properties are not allowed ('batch_sizes'",
        ),
    ],
)
def test_the_api_refuses_bad_values_before_a_run_exists(cockpit: Cockpit, parameters: dict[str, Any], reason: str):
    before = len(cockpit.runs())
    answer = cockpit.ask_for_run(parameters)
    assert answer.status_code == 409
    assert reason in answer.json()["detail"]
    assert len(cockpit.runs()) == before


def test_what_does_not_go_together_fails_at_once_and_says_why(cockpit: Cockpit, page: Page):
    flow_run = cockpit.begin(cockpit.parameters(train={"steps_per_rollout": 3}))
    cockpit.wait(flow_run, "Failed")
    page.goto(cockpit.page_of(flow_run))
    why = "train.steps_per_rollout=3 does not divide rollout.batch_size=4; choose a divisor"
    expect(page.get_by_text(why).first).to_be_visible()
    assert not list(cockpit.place.glob("runs/*")), "a run directory was made"
