"""The driver against a control API on a real port."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

import pytest

from openclaw_core.config import load_config
from openclaw_core.loop.client import (
    MAX_RESTARTS,
    PHASES,
    ControlClient,
    ControlError,
    ServiceSilent,
    drive,
    drive_step,
    phase_deadlines,
)
from tests.control_stub import TOKEN, StubService
from tests.ports import free_ports

DEADLINES = phase_deadlines(load_config("local-cpu"))


@pytest.fixture
def service() -> StubService:
    return StubService(steps=3)


@pytest.fixture
def client(service: StubService) -> Iterator[ControlClient]:
    with service.serving() as url, ControlClient(url, TOKEN, silence_s=0.5) as client:
        yield client


def test_a_step_runs_the_five_phases_in_order(service: StubService, client: ControlClient):
    phases: list[str] = []
    results = drive_step(client, 1, DEADLINES, on_phase=phases.append)
    assert service.done == [(1, phase) for phase in PHASES]
    assert tuple(phases) == PHASES == tuple(results)
    assert results["publish"] == {"phase": "publish", "version": 1}


def test_a_slow_phase_is_polled_and_says_what_it_waits_for(service: StubService, client: ControlClient):
    service.polls["collect"] = 3
    heard: list[str] = []
    client.run_phase(1, "collect", deadline_s=30, wait_s=0, on_wait=heard.append)
    assert heard == ["collect needs more"] * 3


def test_a_phase_without_progress_fails_at_its_deadline_with_the_last_word(service: StubService, client: ControlClient):
    service.polls["collect"] = 10**9
    with pytest.raises(ControlError, match=r"step 1: collect made no progress for 0\.2 s; .* collect needs more"):
        client.run_phase(1, "collect", deadline_s=0.2, wait_s=0)


def test_a_phase_that_makes_progress_is_waited_for(service: StubService, client: ControlClient):
    service.polls["collect"] = 12
    service.progress = lambda polls: f"{polls} replays are left"
    said: list[str] = []

    def slowly(progress: str) -> None:
        said.append(progress)
        time.sleep(0.1)

    assert client.run_phase(1, "collect", deadline_s=0.5, wait_s=0, on_wait=slowly)
    assert len(said) == 12


def test_a_watcher_can_end_the_wait(service: StubService, client: ControlClient):
    service.polls["collect"] = 10**9

    def give_up(progress: str) -> None:
        raise InterruptedError(progress)

    with pytest.raises(InterruptedError):
        client.run_phase(1, "collect", deadline_s=30, wait_s=0, on_wait=give_up)


@pytest.mark.parametrize(("status", "message"), [(409, "step 7 is not next"), (500, "the loss is not finite")])
def test_errors_carry_the_services_message(service: StubService, client: ControlClient, status: int, message: str):
    service.failures[1, "train"] = (status, message)
    with pytest.raises(ControlError, match=message):
        drive_step(client, 1, DEADLINES)
    assert service.done == [(1, "collect"), (1, "score")]


def test_a_wrong_token_is_said_at_once(service: StubService):
    with service.serving() as url, ControlClient(url, "wrong") as client, pytest.raises(ControlError, match="control token"):
        client.status()


def test_a_service_that_loads_is_waited_for(service: StubService, client: ControlClient):
    service.failures[1, "collect"] = (503, "still loading")
    assert client.run_phase(1, "collect", deadline_s=30)["phase"] == "collect"


def test_silence_has_a_deadline():
    url = f"http://127.0.0.1:{free_ports()['ports.control']}"
    with ControlClient(url, TOKEN, silence_s=0.3) as client, pytest.raises(ServiceSilent, match=f"{url} does not answer"):
        client.status()


def test_the_driver_runs_every_step_once(service: StubService, client: ControlClient):
    last = drive(client, lambda step: drive_step(client, step, DEADLINES), reattach=lambda: pytest.fail("nothing was lost"))
    assert service.done == [(step, phase) for step in (1, 2, 3) for phase in PHASES]
    assert (last.state, last.step) == ("finished", 3)


def test_the_driver_begins_where_the_service_stands(service: StubService, client: ControlClient):
    service.done = [(step, phase) for step in (1, 2) for phase in PHASES] + [(3, "collect")]
    steps: list[int] = []
    drive(client, lambda step: (steps.append(step), drive_step(client, step, DEADLINES)), reattach=lambda: None)
    assert steps == [3]
    assert len(service.done) == 3 * len(PHASES)


def test_after_a_loss_the_step_that_the_service_asks_for_is_run():
    """The service dies after step 1 and comes back knowing it: step 1 is not run again."""
    service = StubService(steps=2)
    port = free_ports()["ports.control"]
    steps: list[int] = []
    with contextlib.ExitStack() as life, ControlClient(f"http://127.0.0.1:{port}", TOKEN, silence_s=0.3) as client:
        first = life.enter_context(contextlib.ExitStack())
        first.enter_context(service.serving(port))

        def run_step(step: int) -> None:
            steps.append(step)
            if steps == [1, 2]:
                first.close()
            drive_step(client, step, DEADLINES)

        drive(client, run_step, reattach=lambda: life.enter_context(service.serving(port)))
    assert steps == [1, 2, 2]
    assert service.done == [(step, phase) for step in (1, 2) for phase in PHASES]


def test_a_service_that_keeps_dying_is_given_up():
    restarts: list[int] = []
    with (
        ControlClient(f"http://127.0.0.1:{free_ports()['ports.control']}", TOKEN, silence_s=0) as client,
        pytest.raises(ServiceSilent),
    ):
        drive(client, lambda step: None, reattach=lambda: restarts.append(1))
    assert len(restarts) == MAX_RESTARTS
