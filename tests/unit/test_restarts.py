"""What a run does by itself when something is away for a moment, and what it leaves as it was."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from openclaw_core import feeding, stages
from openclaw_core.cluster.errors import ClusterError
from openclaw_core.cluster.runtime import FeederState
from openclaw_core.config import load_config
from openclaw_core.feeding import feeder_watch
from openclaw_core.rundir import RunDir, create_run
from openclaw_core.trainer.part_stores import nodes_with_parts


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return create_run(load_config("local-cpu", {"paths.runs": str(tmp_path)}), "r")


def test_a_look_at_the_feeder_that_fails_once_ends_no_collection(run: RunDir, monkeypatch: pytest.MonkeyPatch):
    now, looks = [0.0], 0

    def look(_run: RunDir) -> FeederState:
        nonlocal looks
        looks += 1
        if looks in (2, 4):
            raise ClusterError("train: the connection was refused")
        return FeederState(True, "container", "feeder.log", "")

    monkeypatch.setattr(feeding, "feeder_state", look)
    monkeypatch.setattr(feeding.time, "monotonic", lambda: now[0])
    watch = feeder_watch(run)
    for now[0] in (0.0, 5.0, 50.0):
        watch("")
    now[0] = 50 + feeding.ABSENCE_S + 1
    with pytest.raises(ClusterError, match="refused"):
        watch("")


def test_a_restart_in_the_middle_of_a_run_takes_no_edit_of_the_checkout_with_it(run: RunDir, monkeypatch: pytest.MonkeyPatch):
    asked: list[bool] = []

    class Recorder:
        def launch(self, *, unchanged: bool = False) -> tuple[bool, str]:
            asked.append(unchanged)
            return True, "here"

    class Job:
        def __init__(self, *_arguments: Any) -> None: ...

        def stop(self) -> None: ...

    @contextlib.contextmanager
    def runtime(*_arguments: Any) -> Iterator[Recorder]:
        yield Recorder()

    monkeypatch.setattr(stages, "runtime_of", runtime)
    monkeypatch.setattr(stages, "ServiceJob", Job)
    monkeypatch.setattr(stages, "attach_service", lambda *_arguments: None)
    stages.restart_service(run.config(), run)
    stages.launch_ray(run.config(), run)
    assert asked == [True, False]


def test_checkpoint_parts_are_looked_for_where_the_trainer_writes_them():
    nodes = [
        {"NodeID": name, "Alive": alive, "Resources": {f"host:{name}": 1000.0}}
        for name, alive in (("actor-1", True), ("actor-2", False), ("rollout-1", True), ("prm", True), ("actor-3", True))
    ]
    assert nodes_with_parts(load_config("32b-8nodes"), nodes) == ["actor-1", "actor-3"]
    assert nodes_with_parts(load_config("local-cpu"), nodes[:1]) == ["actor-1"]
