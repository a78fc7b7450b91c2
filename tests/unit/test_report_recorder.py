"""What the driver keeps of a run, over a real control API that trains nothing."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from openclaw_core.config import RunConfig, load_config
from openclaw_core.loop.client import PHASES, ControlClient, ServiceSilent, ServiceStatus
from openclaw_core.report import recorder as recorder_module
from openclaw_core.report.gather import RunRecord, gather
from openclaw_core.report.recorder import Recorder, recorded
from openclaw_core.report.series import Row, read_rows
from openclaw_core.rundir import RunDir, create_run
from tests.control_stub import StubService
from tests.ports import free_ports
from tests.unit.test_tracking import scalars_of


class Audience:
    """A Watcher that remembers."""

    def __init__(self) -> None:
        self.steps: list[int] = []
        self.reports: list[int] = []

    def progress(self, status: ServiceStatus, rows: Sequence[Row]) -> None:
        self.steps = [row["step"] for row in rows]

    def report(self, record: RunRecord, plots: str, page: Path) -> None:
        assert page.exists()
        self.reports.append(len(record.rows))


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return create_run(load_config("local-cpu", {"paths.runs": str(tmp_path), "train.steps": 450, **free_ports()}), "r")


@pytest.fixture
def service(run: RunDir) -> Iterator[StubService]:
    service = StubService(450, token=run.secrets().control_token)
    with service.serving(run.config().ports.control):
        yield service


def finish(service: StubService, steps: int) -> None:
    first = service.next_step
    service.done += [(step, phase) for step in range(first, first + steps) for phase in PHASES]


def elsewhere(run: RunDir) -> RunConfig:
    """The same run, whose service has a run directory of its own on another machine."""
    config = run.config()
    return config.model_copy(update={"cluster": config.cluster.model_copy(update={"containers": True})})


def client(run: RunDir) -> ControlClient:
    config = run.config()
    return ControlClient(f"http://127.0.0.1:{config.ports.control}", run.secrets().control_token, silence_s=0)


def test_all_steps_come_in_pages_and_then_only_new_ones(run: RunDir, service: StubService) -> None:
    finish(service, 405)
    with client(run) as control:
        assert [row["step"] for row in control.rows()] == list(range(1, 406))
        assert [row["step"] for row in control.rows(404)] == [405]
        assert control.rows(405) == []


def test_an_attempt_that_is_made_anew_shows_the_whole_history(run: RunDir, service: StubService) -> None:
    finish(service, 2)
    for more in (1, 2):
        finish(service, more)
        audience = Audience()
        with client(run) as control:
            recorder = Recorder(run.config(), run, control, [audience])
            recorder.look()
            assert audience.steps == list(range(1, service.next_step))
            recorder.close()
    assert [step for step, _ in scalars_of(run, "rollout/reward_mean")] == [1, 2, 3, 4, 5]


def test_the_driver_keeps_what_is_on_another_machine(run: RunDir, service: StubService) -> None:
    samples: dict[str, Any] = {"step": 1, "good": None, "bad": None}
    service.samples = lambda step: {"samples": samples | {"step": step}}
    finish(service, 3)
    with client(run) as control:
        recorder = Recorder(elsewhere(run), run, control)
        recorder.look()
        finish(service, 6)
        recorder.look()
        recorder.close()
    assert [row["step"] for row in read_rows(run.metrics_file)] == list(range(1, 10))
    assert [found["step"] for found in gather(run).samples] == [1, 7, 8, 9]
    assert "9 of 450 steps" in run.report_file.read_text()


def test_what_the_service_writes_here_is_left_to_it(run: RunDir, service: StubService) -> None:
    finish(service, 3)
    with client(run) as control:
        Recorder(run.config(), run, control).look()
    assert not run.metrics_file.exists() and not run.samples_file.exists()


def test_reports_are_made_now_and_then_and_at_the_end(run: RunDir, service: StubService) -> None:
    audience = Audience()
    with client(run) as control:
        recorder = Recorder(elsewhere(run), run, control, [audience])
        recorder.look()
        assert audience.reports == []  # no step yet
        for _ in range(5):
            finish(service, 1)
            recorder.look()
        assert audience.reports == [1]
        recorder.close()
    assert audience.reports == [1, 5]


def test_a_service_that_has_ended_leaves_a_report(run: RunDir) -> None:
    with client(run) as control:
        recorder = Recorder(run.config(), run, control)
        with pytest.raises(ServiceSilent):
            recorder.look()
        recorder.close()
    assert "The run has not ended" in run.report_file.read_text()


def test_a_watcher_that_fails_ends_no_run_and_is_said_once(
    run: RunDir, service: StubService, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Broken(Audience):
        looks = 0

        def progress(self, status: ServiceStatus, rows: Sequence[Row]) -> None:
            self.looks += 1
            raise OSError("the API is away")

    monkeypatch.setattr(recorder_module, "LOOK_S", 0.01)
    broken = Broken()
    with recorded(run.config(), run, [broken]):
        while broken.looks < 3:
            pass
    assert capsys.readouterr().out.count("run_not_recorded") == 1


def test_a_watcher_that_hangs_does_not_hold_up_the_end(
    run: RunDir, service: StubService, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    released, entered = threading.Event(), threading.Event()

    class Stuck(Audience):
        def progress(self, status: ServiceStatus, rows: Sequence[Row]) -> None:
            entered.set()
            released.wait(60)

    monkeypatch.setattr(recorder_module, "LOOK_S", 0.01)
    monkeypatch.setattr(recorder_module, "PATIENCE_S", 0.05)
    with recorded(run.config(), run, [Stuck()]):
        assert entered.wait(30)
    assert "is busy for more than 0.05 s" in capsys.readouterr().out
    released.set()


def test_the_block_is_recorded_in_a_thread_until_its_end(
    run: RunDir, service: StubService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder_module, "LOOK_S", 0.01)
    audience = Audience()
    with pytest.raises(ZeroDivisionError), recorded(run.config(), run, [audience]):
        finish(service, 1)
        while audience.steps != [1]:
            pass
        finish(service, 1)
        raise ZeroDivisionError
    assert audience.steps == [1, 2]
    assert run.report_file.exists()
