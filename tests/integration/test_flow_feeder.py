"""The feeder task with the real feeder process, whose gateway does not answer yet."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from prefect import flow

from openclaw_core import feeding
from openclaw_core.cluster.processes import OwnedProcess, Processes
from openclaw_core.config import load_config
from openclaw_core.feeding import FeederGone, feeder_watch, start_feeder, stop_feeder
from openclaw_core.rundir import RunDir, create_run
from tasks.feeder import feeding as feeding_task
from tests.ports import free_ports


@pytest.fixture
def run(tmp_path: Path) -> Iterator[RunDir]:
    run = create_run(load_config("local-cpu", {"paths.runs": str(tmp_path), **free_ports()}), "r")
    yield run
    stop_feeder(run)


def wait_for_feeder(run: RunDir, other_than: int | None = None) -> OwnedProcess:
    end = time.monotonic() + 60
    while time.monotonic() < end:
        feeder = Processes(run.processes).find("feeder")
        if feeder is not None and feeder.pid != other_than:
            return feeder
        time.sleep(0.1)
    raise AssertionError("no feeder was started")


@pytest.mark.usefixtures("prefect_server")
def test_a_feeder_that_dies_is_started_again_and_none_is_left_at_the_end(run: RunDir):
    @flow
    def beside() -> None:
        with feeding_task(str(run.path)) as switch:
            assert Processes(run.processes).find("feeder") is None
            switch.on.set()
            first = wait_for_feeder(run)
            psutil.Process(first.pid).kill()
            wait_for_feeder(run, other_than=first.pid)

    beside()
    assert Processes(run.processes).alive() == []


def test_a_collection_gives_up_when_its_feeder_stays_away(run: RunDir, monkeypatch: pytest.MonkeyPatch):
    watch = feeder_watch(run)
    watch("no feeder was ever started: people feed this run")
    feeder = start_feeder(run)
    watch("it is alive")
    psutil.Process(feeder.pid).kill()
    feeder.wait(10)
    watch("it may be started again")
    monkeypatch.setattr(feeding, "ABSENCE_S", 0.0)
    with pytest.raises(FeederGone, match="the feeder has ended, so nobody asks the model anything"):
        watch("it has been gone for too long")


def test_a_second_start_takes_up_the_feeder_that_is_alive(run: RunDir):
    assert start_feeder(run) == start_feeder(run)
