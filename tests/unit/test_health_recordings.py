"""The rules on runs that were really well, and on runs that were really ill (tests/health_recordings/make.py)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from openclaw_core.config import RunConfig, load_config
from openclaw_core.health import RULES, State, assess
from tests.health_recordings import make

RECORDINGS = Path(make.__file__).parent
WARN, STOP = State.WARN, State.STOP
SAID = {
    "max_not_subtracted": {"opd_strong": (3, 1, WARN), "opd_saturated": (5, 1, STOP)},
    "lr_x100": {"kl_high": (4, 2, WARN), "kl_diverging": (4, 2, STOP), "entropy_collapsing": (17, 13, WARN)},
    "no_length_limit": {"response_growing": (12, 10, WARN)},
    "stale_engine": {
        "engine_parity_high": (6, 4, WARN),
        "logprob_diff_high": (7, 5, WARN),
        "engine_parity_growing": (9, 7, WARN),
        "engine_parity_lost": (14, 12, STOP),
    },
}
"""Run → rule → step at whose end it speaks first, since when, and what it says."""


def rows(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (RECORDINGS / f"{name}.jsonl").read_text().splitlines()]


def config(name: str) -> RunConfig:
    """As the run had it: the limits are the preset's."""
    overrides = make.SETTINGS | make.RUNS[name].overrides if name in make.RUNS else {}
    return load_config("local-cpu", overrides)


def raised(name: str) -> dict[str, tuple[int, int, State]]:
    """As in SAID."""
    found: dict[str, tuple[int, int, State]] = {}
    recorded, settings = rows(name), config(name)
    for step in range(1, len(recorded) + 1):
        for finding in assess(recorded[:step], settings).findings:
            found.setdefault(finding.rule, (step, finding.since, finding.state))
    return found


@pytest.mark.parametrize("name", ["local_cpu", "healthy"])
def test_a_healthy_run_is_warned_of_at_no_step(name: str):
    assert len(rows(name)) >= 20
    assert raised(name) == {}


@pytest.mark.parametrize(("name", "rules"), SAID.items())
def test_an_ill_run_is_found_out(name: str, rules: dict[str, tuple[int, int, State]]):
    assert raised(name) == rules


def test_the_document_tells_of_it():
    table = (RECORDINGS.parents[1] / "docs" / "HEALTH.md").read_text()
    for name, rules in SAID.items():
        said = ", ".join(f"`{rule}` ({state}) after step {step}" for rule, (step, _, state) in rules.items())
        assert f" | {said} |\n" in table, name


@pytest.mark.parametrize("name", SAID)
def test_before_it_shows_nothing_is_said(name: str):
    first = min(since for _, since, _ in raised(name).values())
    assert not assess(rows(name)[: first - 1], config(name)).findings


def test_the_recordings_are_whole():
    assert {file.stem for file in RECORDINGS.glob("*.jsonl")} == {*make.RUNS, "local_cpu"}
    for name in make.RUNS:
        assert [row["step"] for row in rows(name)] == list(range(1, make.STEPS + 1)), name
    metrics = {key for name in make.RUNS for row in rows(name) for key in row}
    assert {rule.metric for rule in RULES} <= metrics, "a rule is about a metric that no run has"
