"""What `make run` shows."""

from __future__ import annotations

from typing import Any

import pytest

from flows import progress
from flows.progress import PlainProgress, Snapshot, StageView, headline
from openclaw_core.loop.client import ServiceStatus

METRICS = {"rollout/reward_mean": -0.25, "rollout/satisfied_share": 0.5, "perf/tokens_per_s": 312.4}


def service(**changes: Any) -> ServiceStatus:
    fields = {
        "run_id": "r",
        "state": "ready",
        "error": None,
        "step": 4,
        "next_step": 5,
        "steps": 20,
        "phase": "collect",
        "batch": {"ready": 7, "size": 16, "in_flight": 2, "judging": 1},
        "version": 4,
        "metrics": METRICS,
        "accepting": True,
        "eta_s": 605.0,
        "waiting_for": "7 of 16 samples are there",
    }
    return ServiceStatus.model_validate(fields | changes)


def stage(name: str, state: str = "Running", message: str = "") -> StageView:
    return StageView(name, state, message)


def test_the_headline_has_everything_that_is_asked_of_it():
    shown = headline(Snapshot((stage("train-loop"),), service()))
    assert shown == "train-loop  step 5/20  collect  7/16 samples  reward -0.25  satisfied 0.50  312 tokens/s  10:05 left"


def test_samples_are_shown_while_they_are_collected_only():
    assert (
        headline(Snapshot((stage("train-loop"),), service(phase="train", metrics={}, eta_s=None)))
        == "train-loop  step 5/20  train"
    )


def test_after_the_last_step_the_count_does_not_run_over():
    assert headline(Snapshot((stage("train-loop"),), service(next_step=21, phase=None))).startswith(
        "train-loop  step 20/20  between phases"
    )


@pytest.mark.parametrize(
    ("stages", "shown"),
    [
        ((), "waiting for the worker to take the run"),
        ((stage("build-image", "Skipped"),), "between stages"),
        ((stage("download-model"),), "download-model"),
        ((stage("train-loop"), stage("evaluate-before")), "evaluate-before"),
        ((stage("feeder"), stage("train-loop")), "train-loop"),
    ],
)
def test_without_a_service_the_stage_at_work_is_shown(stages: tuple[StageView, ...], shown: str):
    assert headline(Snapshot(stages, None)) == shown


def test_a_finished_stage_is_told_once_with_what_it_did():
    reused = stage("download-model", "Reused", "the model is in models/m/hf")
    lines = PlainProgress()
    assert lines.lines(Snapshot((reused, stage("env-check")), None)) == [
        "download-model: reused, the model is in models/m/hf",
        "env-check",
    ]
    assert lines.lines(Snapshot((reused, stage("env-check")), None)) == []


def test_a_new_phase_is_a_new_line_and_a_long_one_is_repeated(monkeypatch: pytest.MonkeyPatch):
    lines, at = PlainProgress(), Snapshot((stage("train-loop"),), service())
    assert len(lines.lines(at)) == 1
    assert lines.lines(at) == []
    assert lines.lines(Snapshot(at.stages, service(phase="train")))[0].startswith("train-loop  step 5/20  train")
    monkeypatch.setattr(progress, "SAY_AGAIN_S", 0)
    assert len(lines.lines(Snapshot(at.stages, service(phase="train")))) == 1
