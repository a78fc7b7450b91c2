"""loss.advantage_baseline=persona_mean: the reward less what this person's turns got in the steps before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from openclaw_core.config import load_config
from openclaw_core.gateway.admission import WaitingRoom
from openclaw_core.judge import build_judge
from openclaw_core.ledger import Ledger, Outcome, StepRecord
from openclaw_core.loop.baseline import baseline_metrics
from openclaw_core.loop.intake import Intake
from openclaw_core.loop.loop import Loop
from openclaw_core.rundir import RunDir
from openclaw_core.types import Judgement, NextState, Question, Sample, Vote
from tests.unit.test_ledger import make_turn

REWARDS = {1: {"ta": (1, -1, -1, -1), "": (1,)}, 2: {"ta": (1, 1, 1, 1), "teacher": (-1,), "": (1,)}, 3: {"ta": (1,), "": (0,)}}
"""Step → person → the rewards of their turns."""


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    """Batches that are collected and not trained; the feeder has named those who have a name."""
    ledger = Ledger(tmp_path / "ledger.sqlite")
    for step, people in REWARDS.items():
        names: list[str] = []
        for person, rewards in people.items():
            for i, reward in enumerate(rewards):
                name = f"{step}-{person or 'somebody'}-{i}"
                ledger.add_turn(make_turn(name, session_id=name))
                ledger.set_next_state(name, NextState("user", "Hm."))
                ledger.add_judgement(Judgement(name, reward, ("A hint.",), (Vote(Question.REWARD, reward, None, ""),)))
                if person:
                    ledger.add_outcome(Outcome(name, person, first=True, satisfied=False, relevant=True, problem=1), step)
                names.append(name)
        ledger.open_step(step, names)
    return ledger


def loop_of(ledger: Ledger, tmp_path: Path, baseline: str) -> Loop:
    config = load_config("local-cpu", {"loss.advantage_baseline": baseline})
    room = WaitingRoom(hold_max_s=60, hold_max_requests=9)
    intake = Intake(ledger, build_judge(config), room.notify, config, lambda hint: ())
    parts: Any = (None, None)
    return Loop(config, RunDir(tmp_path), ledger, intake, room, *parts, lambda hint: ())


def record(ledger: Ledger, step: int) -> StepRecord:
    found = ledger.step(step)
    assert found is not None
    return found


def baselines(samples: list[Sample]) -> dict[str, float]:
    return {sample.persona: round(sample.baseline, 6) for sample in samples}


def test_it_is_the_mean_of_each_persons_rewards_in_the_steps_before(ledger: Ledger, tmp_path: Path):
    loop = loop_of(ledger, tmp_path, "persona_mean")
    found: list[dict[str, float]] = []
    for step in REWARDS:
        samples = loop.samples(record(ledger, step))
        found.append(baselines(samples))
        ledger.record_training(step, step, skipped=False, metrics=baseline_metrics(samples))
    assert found == [{"ta": 0, "": 0}, {"ta": -0.5, "teacher": 0, "": 1}, {"ta": 0.25, "": 1}]


def test_a_replay_has_the_same_numbers_though_more_is_known_by_then(ledger: Ledger, tmp_path: Path):
    loop = loop_of(ledger, tmp_path, "persona_mean")
    trained: dict[int, list[Sample]] = {}
    for step in REWARDS:
        trained[step] = loop.samples(record(ledger, step))
        ledger.record_training(step, step, skipped=False, metrics=baseline_metrics(trained[step]))
    ledger.add_outcome(Outcome("3-somebody-0", "ta", first=True, satisfied=False, relevant=True, problem=1), 3)
    assert {step: loop.samples(record(ledger, step)) for step in REWARDS} == trained


def test_without_it_the_advantage_is_the_reward(ledger: Ledger, tmp_path: Path):
    loop = loop_of(ledger, tmp_path, "none")
    for step in REWARDS:
        assert baselines(loop.samples(record(ledger, step))) == {"": 0}
