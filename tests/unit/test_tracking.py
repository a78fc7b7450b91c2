"""Trackers are told every step once, whatever restarts, and none of them can end a run."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from openclaw_core.config import ConfigError, RunConfig, load_config
from openclaw_core.rundir import RunDir, create_run
from openclaw_core.tracking import packages
from openclaw_core.tracking.following import Trackers
from openclaw_core.tracking.protocol import Tracker, scalars
from tests.report_parts import real_rows


class Notebook:
    """A tracker that keeps what it is told; ``fails_at``: the step at which its server is away."""

    def __init__(self, fails_at: int | None = None) -> None:
        self.told: dict[str, list[int]] = {}
        self.closed: list[str] = []
        self.fails_at = fails_at

    def open(self, name: str, config: RunConfig, run: RunDir) -> Tracker:
        notebook, told = self, self.told.setdefault(name, [])

        class Page:
            def log(self, step: int, metrics: Mapping[str, float]) -> None:
                if name != "tensorboard" and step == notebook.fails_at:
                    raise ConnectionError("no route to host")
                told.append(step)

            def close(self) -> None:
                notebook.closed.append(name)

        return Page()


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return create_run(load_config("local-cpu", {"paths.runs": str(tmp_path)}), "r")


def with_wandb(run: RunDir) -> RunConfig:
    return load_config("local-cpu", {"paths.runs": str(run.path.parent), "tracking.use": ["wandb"]})


def scalars_of(run: RunDir, tag: str) -> list[tuple[int, float]]:
    events = EventAccumulator(str(run.tensorboard), size_guidance={"scalars": 0})
    events.Reload()
    return [(event.step, event.value) for event in events.Scalars(tag)]


def test_tensorboard_has_every_step_once_after_a_restart(run: RunDir) -> None:
    rows = real_rows(12)
    for seen in (rows[:5], rows[:9], rows):
        trackers = Trackers(run.config(), run)
        trackers.log(seen)
        trackers.close()
    found = scalars_of(run, "train/grad_norm")
    assert [step for step, _ in found] == list(range(1, 13))
    assert [value for _, value in found] == pytest.approx([row["train/grad_norm"] for row in rows], rel=1e-6)


def test_tensorboard_has_a_step_as_soon_as_it_was_told(run: RunDir) -> None:
    trackers = Trackers(run.config(), run)
    trackers.log(real_rows(3))
    assert len(scalars_of(run, "rollout/reward_mean")) == 3  # nothing was closed: the driver may be killed here
    trackers.close()


def test_the_same_steps_again_are_not_told_again(run: RunDir) -> None:
    notebook = Notebook()
    trackers = Trackers(with_wandb(run), run, notebook.open)
    for count in (2, 4, 4):
        trackers.log(real_rows(count))
    trackers.close()
    assert notebook.told == {"tensorboard": [1, 2, 3, 4], "wandb": [1, 2, 3, 4]}
    assert sorted(notebook.closed) == ["tensorboard", "wandb"]


def test_a_tracker_that_fails_is_said_once_and_the_others_go_on(run: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    notebook = Notebook(fails_at=3)
    trackers = Trackers(with_wandb(run), run, notebook.open)
    trackers.log(real_rows(3))
    trackers.log(real_rows(6))
    trackers.close()
    assert notebook.told == {"tensorboard": [1, 2, 3, 4, 5, 6], "wandb": [1, 2]}
    assert notebook.closed == ["tensorboard"]
    said = capsys.readouterr().out
    assert said.count("tracker_failed") == 1 and "no route to host" in said and "wandb" in said


def test_the_next_process_tells_it_what_it_missed(run: RunDir) -> None:
    for notebook, told in ((Notebook(fails_at=3), [1, 2]), (Notebook(), [3, 4, 5])):
        trackers = Trackers(with_wandb(run), run, notebook.open)
        trackers.log(real_rows(5))
        trackers.close()
        assert notebook.told["wandb"] == told


def test_a_tracker_that_cannot_be_opened_does_not_end_the_run(run: RunDir) -> None:
    def refuse(name: str, config: RunConfig, run: RunDir) -> Tracker:
        raise RuntimeError("api_key not configured")

    trackers = Trackers(run.config(), run, refuse)
    trackers.log(real_rows(2))
    trackers.close()
    assert json.loads((run.tracking / "position.json").read_text()) == {"tensorboard": 0}


def test_what_a_package_prints_is_no_result(run: RunDir, capfd: pytest.CaptureFixture[str]) -> None:
    class Greeting(Notebook):
        def open(self, name: str, config: RunConfig, run: RunDir) -> Tracker:
            print("welcome")  # noqa: T201
            return super().open(name, config, run)

    Trackers(run.config(), run, Greeting().open).log(real_rows(1))
    captured = capfd.readouterr()
    assert "welcome" in captured.err and "welcome" not in captured.out


def test_numbers_alone_are_told() -> None:
    row = {"step": 4, "time": 1.0, "version": 3, "a": None, "b": float("inf"), "c": True, "d": [1], "health/state": "warn"}
    assert scalars(row | {"rollout/dropped": {"stale": 2}, "e": 0.5}) == {
        "version": 3,
        "c": 1.0,
        "rollout/dropped/stale": 2,
        "e": 0.5,
    }


@pytest.mark.parametrize("name", ["wandb", "swanlab", "mlflow", "trackio"])
def test_a_tracker_that_is_not_installed_is_refused_before_the_run_exists(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = packages.find_spec
    monkeypatch.setattr(packages, "find_spec", lambda package: None if package == name else there(package))
    config = load_config("local-cpu", {"paths.runs": str(tmp_path), "tracking.use": [name]})
    with pytest.raises(ConfigError, match=rf"needs {name} on this machine: pip install 'openclaw-rl\[{name}\]'"):
        create_run(config, "r")
    assert not (tmp_path / "r").exists()


def test_plots_and_tensorboard_come_with_one_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "find_spec", lambda package: None)
    with pytest.raises(ConfigError, match=r"the report of a run needs tensorboard, matplotlib .*'openclaw-rl\[report\]'"):
        create_run(load_config("local-cpu", {"paths.runs": str(tmp_path)}), "r")


def test_no_tracker_is_imported_before_it_is_opened() -> None:
    assert not {"wandb", "swanlab", "mlflow", "trackio"} & set(sys.modules)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"tracking.use": ["wandb", "wandb"]}, "names a tracker twice"),
        ({"tracking.use": ["neptune"]}, "'wandb', 'swanlab', 'mlflow' or 'trackio'"),
        ({"tracking.mlflow_uri": "https://mlflow.example"}, "set it to online"),
        ({"tracking.mlflow_uri": "https://me:pw@mlflow.example", "tracking.mode": "online"}, "should match pattern"),
        ({"tracking.project": "../elsewhere"}, "should match pattern"),
    ],
)
def test_settings_that_do_not_fit_are_refused(settings: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        load_config("local-cpu", settings)


def test_nothing_leaves_the_machine_unless_it_is_asked_for() -> None:
    assert load_config("local-cpu").tracking.mode == "offline"
    assert load_config("4b-2nodes").tracking.use == ()
