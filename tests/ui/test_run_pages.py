"""Pages of a run: retried, finished, cancelled."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from openclaw_core.cluster.processes import Processes
from openclaw_core.rundir import RunDir
from tests.ui.browser import node_bars, shoot, unfold
from tests.ui.cockpit import STEPS, Cockpit

pytestmark = [pytest.mark.ui, pytest.mark.timeout(1200)]

STAGES = ("build-image", "distribute-image", "download-model", "convert-checkpoint", "env-check", "launch-ray", "teardown")


def test_a_failed_run_is_retried_by_its_button(cockpit: Cockpit, finished: str, page: Page):
    assert cockpit.flow_run(finished)["run_count"] == 2
    page.goto(cockpit.page_of(finished))
    expect(page.get_by_text("Completed", exact=True).first).to_be_visible()
    page.get_by_text("Task Runs", exact=True).click()
    expect(page.get_by_text("Cached", exact=True)).to_have_count(2)
    for stage in STAGES:
        expect(page.get_by_text(stage, exact=True).first).to_be_visible()


def test_the_dashboard_shows_what_ran(cockpit: Cockpit, finished: str, page: Page):
    page.goto(f"{cockpit.prefect.ui}/dashboard")
    page.get_by_role("button", name="Not now").click()
    page.get_by_text("Hide subflows").click()
    expect(page.get_by_role("link", name="openclaw").first).to_be_visible()
    expect(page.get_by_text("Active Work Pools")).to_be_visible()
    shoot(page, "dashboard")


def test_the_runs_page_lists_runs_and_their_steps(cockpit: Cockpit, finished: str, page: Page):
    page.goto(f"{cockpit.prefect.ui}/runs")
    expect(page.get_by_role("link", name="first-steps").first).to_be_visible()
    expect(page.get_by_role("link", name=f"step-{STEPS:05d}").first).to_be_visible()


def test_the_page_of_a_run_has_its_stages_and_its_log(cockpit: Cockpit, finished: str, page: Page):
    with page.expect_response(lambda response: response.url.endswith("/graph-v2")) as answered:
        page.goto(cockpit.page_of(finished))
    drawn = [node["label"] for _, node in answered.value.json()["nodes"]]
    assert {*STAGES, "train-loop", "feeder"} <= set(drawn)
    assert sum(label.endswith("step-00001") for label in drawn) == 1
    expect(page.get_by_text("Completed", exact=True).first).to_be_visible()
    expect(page.get_by_text("build-image: skipped, preset local-cpu has no containers").first).to_be_attached()
    graph = page.locator("canvas")
    expect(graph).to_be_visible()
    page.wait_for_function("document.fonts.status == 'loaded'")
    wait_for_nodes(page, at_least=6)
    shoot(page, "run")


def test_the_graph_unfolds_to_the_steps(cockpit: Cockpit, finished: str, page: Page):
    page.goto(cockpit.page_of(finished))
    wait_for_nodes(page, at_least=6)
    page.get_by_title("Toggle fullscreen (f)").click()
    wait_for_nodes(page, at_least=6)
    unfold(page, page.locator("canvas"))
    wait_for_nodes(page, at_least=9)
    shoot(page, "run-graph")


def test_each_step_is_a_run_with_its_phases(cockpit: Cockpit, finished: str, page: Page):
    page.goto(cockpit.page_of(finished))
    page.get_by_text("Subflow Runs", exact=True).click()
    first = page.get_by_role("link", name="step-00001")
    expect(first).to_be_visible()
    first.scroll_into_view_if_needed()
    shoot(page, "steps")
    first.click()
    page.get_by_text("Task Runs", exact=True).click()
    for phase in ("collect", "score", "train", "publish", "report"):
        expect(page.get_by_text(phase, exact=True).first).to_be_visible()


def test_artifacts_show_table_summary_and_plots(cockpit: Cockpit, finished: str, page: Page):
    artifacts = cockpit.artifacts(finished)
    page.goto(f"{cockpit.prefect.ui}/artifacts")
    for key in artifacts:
        expect(page.get_by_text(key, exact=True)).to_be_visible()
    shoot(page, "artifacts")
    texts = {
        "train-metrics": ("grad norm", "all of them are in metrics.jsonl"),
        "summary": ("held-out, satisfied", "checkpoint"),
    }
    for key, shown in texts.items():
        page.goto(f"{cockpit.prefect.ui}/artifacts/artifact/{artifacts[key]['id']}")
        for text in shown:
            expect(page.get_by_text(text).first).to_be_visible()
        expect(page.get_by_role("link", name="first-steps")).to_be_visible()
        shoot(page, "metrics" if key == "train-metrics" else key)
    page.goto(f"{cockpit.prefect.ui}/artifacts/artifact/{artifacts['plots']['id']}")
    picture = page.locator("img[src^='data:image/svg+xml']").first
    expect(picture).to_be_visible()
    assert picture.evaluate("image => image.naturalWidth") > 300
    shoot(page, "plots")


def test_a_run_is_cancelled_by_its_button(cockpit: Cockpit, finished: str, page: Page):
    flow_run = cockpit.begin(cockpit.parameters(run_id="cancelled"))
    run = RunDir(cockpit.place / "runs" / "cancelled")
    cockpit.until(run.config_file.exists, "the run's directory")
    page.goto(cockpit.page_of(flow_run))
    page.get_by_role("button", name="Cancel").click()
    page.get_by_role("button", name="Confirm").click()
    cockpit.wait(flow_run, "Cancelled")
    expect(page.get_by_text("Cancelled", exact=True).first).to_be_visible()
    cockpit.until(lambda: not Processes(run.processes).alive(), "the end of what the run had started")


def wait_for_nodes(page: Page, at_least: int) -> None:
    """Until the graph is drawn and stands still."""
    graph, last = page.locator("canvas"), []
    for _ in range(100):
        page.wait_for_timeout(300)
        bars = node_bars(graph)
        if len(bars) >= at_least and bars == last:
            return
        last = bars
    raise AssertionError(f"the graph shows no {at_least} completed nodes: {last}")
