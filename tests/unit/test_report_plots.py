"""Plots: one picture, bounded in size, that keeps the extremes and shades what is healthy."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import numpy as np
import pytest

from openclaw_core.config import load_config
from openclaw_core.report.panels import PANELS, healthy
from openclaw_core.report.plots import HEALTHY, plots_svg
from openclaw_core.report.series import MAX_POINTS, series
from tasks.reporting import data_uri
from tests.report_parts import real_rows

BOUNDS = healthy(load_config("local-cpu"))
LIMIT = 100 * 1024
"""Bytes that a Prefect artifact may have."""


@pytest.fixture(scope="module")
def long_run() -> str:
    return plots_svg(real_rows(2000), BOUNDS)


def texts(svg: str) -> set[str]:
    return {"".join(element.itertext()) for element in ET.fromstring(svg).iter() if element.tag.endswith("}text")}


def test_the_picture_of_2000_steps_fits_into_an_artifact(long_run: str) -> None:
    assert len(data_uri(long_run)) < LIMIT


def test_more_steps_do_not_make_it_larger(long_run: str) -> None:
    assert len(data_uri(plots_svg(real_rows(8000), BOUNDS))) < LIMIT
    # A band of 80 points instead of 20 points with a mark each.
    assert len(long_run) < 3 * len(plots_svg(real_rows(20), BOUNDS))


def test_every_panel_has_its_title_and_the_last_value(long_run: str) -> None:
    rows = real_rows(2000)
    assert {panel.title for panel in PANELS} <= texts(long_run)
    assert f"{rows[-1]['train/grad_norm']:.3g}" in texts(long_run)
    assert {"satisfied", "relevant", "collect", "publish"} <= texts(long_run)


def test_it_is_drawn_on_white_and_asks_nothing_of_anywhere(long_run: str) -> None:
    assert "fill: #ffffff" in long_run[: long_run.index("<text")]
    references = [value for element in ET.fromstring(long_run).iter() for name, value in element.items() if "href" in name]
    assert references
    assert all(value.startswith("#") for value in references)
    assert "script" not in long_run and "@import" not in long_run


def test_the_same_steps_make_the_same_picture() -> None:
    assert plots_svg(real_rows(5), BOUNDS) == plots_svg(real_rows(5), BOUNDS)


def test_a_metric_without_values_says_so_and_the_others_are_drawn() -> None:
    rows = [{"step": 1, "rollout/reward_mean": 0.5, "train/grad_norm": None, "perf/collect_time": 1.0}]
    drawn = plots_svg(rows, {})
    assert drawn.count(">no values<") == len(PANELS) - 1
    assert ">0.5<" in drawn


def test_what_is_healthy_is_what_the_health_rules_say() -> None:
    assert BOUNDS["train/grad_norm"] == (None, 10)
    assert BOUNDS["train/tis_mean"] == (0.7, None)
    other = healthy(load_config("local-cpu", {"health.limits.grad_norm_high.bound": 2, "loss.adv_diff_clip": 2}))
    assert other["train/grad_norm"] == (None, 2)
    assert other["train/opd_abs_mean"] == (None, 2 * BOUNDS["train/opd_abs_mean"][1])  # in units of the clip
    shaded, plain = plots_svg(real_rows(5), other), plots_svg(real_rows(5), {})
    assert HEALTHY in shaded
    assert HEALTHY not in plain


def test_thinning_keeps_extremes_ends_and_the_mean() -> None:
    values = np.zeros(1000)
    values[[3, 700]] = -9.0, 42.0
    found = series([{"step": i + 1, "x": float(value)} for i, value in enumerate(values)], "x")
    assert found is not None
    assert len(found.step) == MAX_POINTS
    assert found.thinned
    assert (found.low.min(), found.high.max()) == (-9.0, 42.0)
    counts = np.diff(np.append(np.unique(np.linspace(0, 1000, MAX_POINTS, endpoint=False).astype(int)), 1000))
    assert (found.mean * counts).sum() == pytest.approx(values.sum())
    assert found.step[0] < 20 and found.step[-1] > 980


def test_what_is_no_number_is_left_out() -> None:
    rows = [{"step": 1, "x": None}, {"step": 2, "x": float("nan")}, {"step": 3, "x": 1}, {"step": 4}, {"step": 5, "x": True}]
    found = series(rows, "x")
    assert found is not None
    assert found.step.tolist() == [3]
    assert not found.thinned
    assert series(rows, "y") is None
