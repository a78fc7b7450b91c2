"""The train loop under Prefect, driving a control API that trains nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import httpx
import pytest
from prefect import flow
from prefect.context import FlowRunContext
from prefect.exceptions import Pause
from prefect.runtime import flow_run as this_run
from prefect.states import Suspended

import flows.train_loop
from flows.rollout_step import rollout_step
from flows.train_loop import train_loop
from openclaw_core.config import load_config
from openclaw_core.loop.client import PHASES, ControlError
from openclaw_core.rundir import RunDir, create_run
from tasks.feeder import FeederSwitch
from tests.control_stub import StubService
from tests.integration.evaluated import add_evaluations
from tests.integration.prefect_runs import step_runs, task_runs
from tests.ports import free_ports

pytestmark = pytest.mark.usefixtures("prefect_server")
STEPS = 5


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    """A run that has been evaluated already: nobody answers at its gateway."""
    config = load_config("local-cpu", {"paths.runs": str(tmp_path), "train.steps": STEPS, **free_ports()})
    run = create_run(config, "r")
    add_evaluations(run)
    return run


@pytest.fixture
def service(run: RunDir) -> Iterator[StubService]:
    service = StubService(STEPS, token=run.secrets().control_token)
    with service.serving(run.config().ports.control):
        yield service


def test_every_step_is_a_run_of_its_own_with_the_five_phases(run: RunDir, service: StubService):
    @flow
    def once() -> str:
        train_loop(str(run.path), FeederSwitch())
        return str(this_run.id)

    steps = step_runs(UUID(once()))
    assert [step.name for step in steps] == [f"step-{number:05d}" for number in range(1, STEPS + 1)]
    assert [task.name for task in task_runs(steps[0].id)] == list(PHASES)
    assert run.summary_file.exists()


def test_a_run_of_prefects_may_cover_several_fast_steps(run: RunDir, service: StubService):
    monitored = run.config().model_copy(update={"train": run.config().train.model_copy(update={"monitor_every": 2})})
    run.config_file.write_text(monitored.model_dump_json())

    @flow
    def once() -> str:
        train_loop(str(run.path), FeederSwitch())
        return str(this_run.id)

    steps = step_runs(UUID(once()))
    assert [step.name for step in steps] == ["steps-00001-00002", "steps-00003-00004", "step-00005"]
    assert [task.name for task in task_runs(steps[0].id)] == [*PHASES, *PHASES]
    assert service.done == [(step, phase) for step in range(1, STEPS + 1) for phase in PHASES]


def test_a_retry_goes_on_with_the_step_that_the_service_asks_for(run: RunDir, service: StubService):
    """Prefect matches the subflows of a retried run by their position among the calls: the resumed step 3 is the first
    call of the second attempt and must not be handed the run, or the result, of step 1."""
    service.failures[3, "train"] = (500, "the loss is not finite")
    ids: list[str] = []

    @flow(retries=1, retry_delay_seconds=0, persist_result=True)
    def twice() -> str:
        ids.append(str(this_run.id))
        train_loop(str(run.path), FeederSwitch())
        return ids[0]

    steps = step_runs(UUID(twice()))
    assert len(ids) == 2
    assert [(step.name, step.parameters["step"], step.state_name) for step in steps] == [
        ("step-00001", 1, "Completed"),
        ("step-00002", 2, "Completed"),
        ("step-00003", 3, "Failed"),
        ("step-00003", 3, "Completed"),
        ("step-00004", 4, "Completed"),
        ("step-00005", 5, "Completed"),
    ]
    assert service.done == [(step, phase) for step in range(1, STEPS + 1) for phase in PHASES]


def test_a_failed_phase_fails_the_run_with_the_services_words(run: RunDir, service: StubService):
    service.failures[2, "collect"] = (500, "16 samples are needed, 3 are there")

    @flow
    def once() -> None:
        train_loop(str(run.path), FeederSwitch())

    with pytest.raises(ControlError, match="16 samples are needed, 3 are there"):
        once()
    assert service.next_step == 2


def test_the_feeder_is_switched_on_for_the_steps_only(run: RunDir, service: StubService):
    switch = FeederSwitch()

    @flow
    def once() -> None:
        train_loop(str(run.path), switch)

    assert not switch.on.is_set()
    once()
    assert switch.on.is_set()
    assert switch.off.is_set()


def test_a_step_that_met_no_server_of_prefect_is_asked_for_again(
    run: RunDir, service: StubService, monkeypatch: pytest.MonkeyPatch
):
    """The server itself is killed in a drill (tests/drills/test_kills.py)."""
    begins, calls = rollout_step.__call__, []

    def away_at_first(*arguments: object) -> object:
        calls.append(arguments)
        if len(calls) == 2:
            raise httpx.ConnectError("All connection attempts failed")
        return begins(*arguments)

    monkeypatch.setattr(flows.train_loop, "rollout_step", away_at_first)

    @flow
    def once() -> str:
        train_loop(str(run.path), FeederSwitch())
        return str(this_run.id)

    assert [step.parameters["step"] for step in step_runs(UUID(once()))] == list(range(1, STEPS + 1))
    assert len(calls) == STEPS + 1


@pytest.mark.parametrize("phase", ["collect", "train"])
def test_a_suspended_run_ends_with_a_whole_step_or_where_it_waits_for_turns(run: RunDir, service: StubService, phase: str):
    """Suspended by a person: tests/drills/test_stops.py."""
    service.polls = {phase: 5}
    notes = []

    def suspend(left: int) -> str:
        if service.next_step == 2:
            notes[0].mark_requested(Suspended())
        return f"{left} more"

    service.progress = suspend

    @flow
    def once() -> None:
        context = FlowRunContext.get()
        assert context is not None
        notes.append(context.flow_run_suspension_request)
        ids.append(this_run.id)
        train_loop(str(run.path), FeederSwitch())

    ids: list[str] = []
    service.done = [(1, each) for each in PHASES]
    with pytest.raises(Pause):
        once()
    waited = phase == "collect"
    assert service.next_step == (2 if waited else 3)
    (step,) = step_runs(UUID(ids[0]))
    assert step.parameters["step"] == 2
    states = ["Suspended"] if waited else ["Completed"] * 5
    assert [each.state_name for each in task_runs(step.id)] == states
    assert step.state_name == states[0]
    if waited:
        assert "waited for turns" in str(step.state and step.state.message)
