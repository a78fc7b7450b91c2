"""A process is killed while a run trains. Afterwards the run goes on at the right step, and nothing is trained twice."""

from __future__ import annotations

import pytest
from prefect.client.orchestration import get_client
from prefect.states import Crashed

from flows.local_prefect import SERVER, WORKER, LocalPrefect
from tests.drills.conftest import Start
from tests.drills.going import Going, kill, recorded, until

pytestmark = [pytest.mark.drills, pytest.mark.timeout(1200)]


def crash_by_api(going: Going) -> None:
    """As a person does it under Change state, who does not want to wait for the automation."""
    with get_client(sync_client=True) as client:
        client.set_flow_run_state(going.id, Crashed(message="its machine went down"), force=True)


def retried(going: Going, attempts: int = 2) -> None:
    going.command("retry")
    going.await_state("Completed")
    going.check_trained_once()
    going.check_attempts(attempts)


def test_flow_process(start: Start):
    going = start(steps=12)
    going.await_step(3)
    service = going.service().pid
    kill(going.process())
    assert "SIGKILL" in str(going.await_state("Crashed").message)
    going.await_worker()
    assert going.service().pid == service, "the training does not depend on it"
    retried(going)


def test_worker(start: Start, prefect: LocalPrefect):
    going = start(steps=12)
    going.await_step(2)
    flow = going.process()
    kill(recorded(prefect, WORKER))
    until(lambda: going.state.is_final() or not flow.is_running(), "the flow's process has noticed", 60)
    if not going.state.is_final():
        crash_by_api(going)
    prefect.start(going.config)
    if going.state.name != "Completed":
        retried(going)


def test_worker_and_flow_process_and_the_automation_finds_out(start: Start, prefect: LocalPrefect):
    going = start(steps=12)
    going.await_step(2)
    flow = going.process()
    kill(recorded(prefect, WORKER))
    kill(flow)
    assert "no heartbeat for 90 s" in str(going.await_state("Crashed").message)
    prefect.start(going.config)
    retried(going)


def test_service_and_then_the_server_of_prefect(start: Start, prefect: LocalPrefect):
    """Neither ends the run: the driver brings the service back by itself, and Prefect's server, started again, has forgotten
    nothing that the run holds."""
    going = start(steps=16)
    going.await_step(3)
    kill(going.service())
    going.await_step(5)
    kill(recorded(prefect, SERVER))
    prefect.start(going.config)
    going.await_state("Completed")
    going.check_trained_once()
    going.check_attempts(1)
    assert "restart-service" in [stage.name for stage in going.stages()]
    assert not going.logged("has lost the hold")


def test_engine(start: Start):
    """It is started again, with the weights of the version that is served. Where a phase could not do without it, that step has
    failed, and Retry goes on with it."""
    going = start(steps=12)
    going.await_step(3)
    kill(going.actor("EngineActor"))
    until(lambda: going.state.is_final(), "the run has ended, well or not")
    if going.state.name == "Completed":
        going.check_trained_once()
    else:
        retried(going)
