"""The run's health on a real Prefect server: the event, an automation that acts on it, the pause and the stop."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from prefect import flow, task
from prefect.blocks.notifications import CustomWebhookNotificationBlock
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import StateType
from prefect.events.actions import SendNotification
from prefect.events.filters import EventFilter, EventNameFilter
from prefect.events.schemas.automations import AutomationCore, EventTrigger, Posture
from prefect.runtime import flow_run as this_run

from flows.train_loop import drive_steps
from openclaw_core.config import load_config
from openclaw_core.health.status import HealthStop
from openclaw_core.rundir import RunDir, create_run
from tasks import health
from tests.control_stub import StubService
from tests.integration.prefect_runs import step_runs
from tests.ports import free_ports
from tests.webhook_receiver import Receiver

pytestmark = [pytest.mark.usefixtures("prefect_server"), pytest.mark.timeout(300)]
STEPS = 3
TEXT = "OPD saturated: opd_abs_mean = 1, over 0.95, since step 1; check the maximum"


class IllService(StubService):
    """Steps that train nothing; after step 2 the run is ill, with ``action``, and after step 3 it is well."""

    action = "notify"

    def status(self) -> dict[str, Any]:
        status = super().status()
        said: dict[int, dict[str, Any]] = {
            1: {"step": 1, "state": "healthy"},
            2: {
                "step": 2,
                "state": "stop",
                "changed": True,
                "action": self.action,
                "raised": ["opd_saturated"],
                "findings": [{"rule": "opd_saturated", "text": TEXT}],
            },
            3: {"step": 3, "state": "healthy", "changed": True},
        }
        return status | {"health": said.get(status["step"], {})}


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    config = load_config("local-cpu", {"paths.runs": str(tmp_path), "train.steps": STEPS, **free_ports()})
    return create_run(config, f"ill-{time.time_ns()}")


@pytest.fixture
def service(run: RunDir) -> Iterator[IllService]:
    service = IllService(STEPS, token=run.secrets().control_token)
    with service.serving(run.config().ports.control):
        yield service


@flow(name="trains-and-falls-ill")
def ill(run_dir: str) -> str:
    run = RunDir(Path(run_dir))
    drive_steps(run.config(), run)
    return str(this_run.id)


def until(what: Any, deadline_s: float = 60) -> Any:
    """The first true answer."""
    end = time.monotonic() + deadline_s
    while not (answer := what()):
        assert time.monotonic() < end, "nothing within the deadline"
        time.sleep(0.5)
    return answer


def events(run: RunDir) -> list[Any]:
    """The run's health events on the server, oldest first."""
    with get_client(sync_client=True) as client:
        wanted = EventFilter(event=EventNameFilter(prefix=["openclaw.health."]))
        page = client._client.post("/events/filter", json={"filter": wanted.model_dump(mode="json"), "limit": 50}).json()
    ours = [event for event in page["events"] if event["resource"]["prefect.resource.id"] == f"openclaw.run.{run.run_id}"]
    return sorted(ours, key=lambda event: event["occurred"])


def notifying(run: RunDir, block: UUID) -> AutomationCore:
    """The automation of docs/HEALTH.md, for one run."""
    trigger = EventTrigger(
        expect={"openclaw.health.warn", "openclaw.health.stop"},
        match={"prefect.resource.id": f"openclaw.run.{run.run_id}"},  # pyright: ignore[reportArgumentType]
        posture=Posture.Reactive,
        threshold=1,
        within=timedelta(0),
    )
    send = SendNotification(
        block_document_id=block,
        subject="{{ event.resource.name }} is {{ event.payload.state }}",
        body="{{ event.payload.text }}",
    )
    return AutomationCore(name=f"health of {run.run_id}", trigger=trigger, actions=[send])


def test_a_change_is_an_event_and_an_automation_sends_a_notification(run: RunDir, service: IllService):
    with Receiver().serving() as receiver, get_client(sync_client=True) as client:
        block = CustomWebhookNotificationBlock(
            name="people", url=receiver.url, json_data={"what": "{{subject}}", "why": "{{body}}"}, allow_private_urls=True
        )
        made = client.create_automation(notifying(run, block.save("people", overwrite=True)))
        ill(str(run.path))
        told = until(lambda: len(found := events(run)) == 2 and found)
        assert [event["event"] for event in told] == ["openclaw.health.stop", "openclaw.health.healthy"]
        payload = told[0]["payload"]
        assert (payload["step"], payload["action"], payload["raised"]) == (2, "notify", ["opd_saturated"])
        until(lambda: receiver.received)
        client.delete_automation(made)
    what = f"{run.run_id} is stop"
    assert receiver.received == [{"what": what, "why": f"health after step 2: stop\n{TEXT}"}]


def test_a_pause_holds_the_run_until_somebody_resumes_it(run: RunDir, service: IllService, monkeypatch: pytest.MonkeyPatch):
    service.action = "pause"
    monkeypatch.setattr(health, "POLL_S", 1)
    ids: list[str] = []

    @task(name="train-loop")
    def steps() -> None:
        drive_steps(run.config(), run)

    @flow(name="held")
    def held() -> None:
        ids.append(str(this_run.id))
        steps()

    def resume() -> None:
        with get_client(sync_client=True) as client:
            until(lambda: ids and client.read_flow_run(UUID(ids[0])).state_type is StateType.PAUSED)
            held_at.append(service.next_step)
            time.sleep(3)
            held_at.append(service.next_step)
            client.resume_flow_run(UUID(ids[0]))

    held_at: list[int] = []
    operator = threading.Thread(target=resume)
    operator.start()
    held()
    operator.join()
    assert held_at == [3, 3]
    assert service.next_step == STEPS + 1


def test_a_stop_fails_the_run_and_a_retry_goes_on(run: RunDir, service: IllService):
    service.action = "stop"
    with pytest.raises(HealthStop, match=f"{TEXT}.*"):
        ill(str(run.path))
    assert service.next_step == 3
    steps = step_runs(UUID(ill(str(run.path))))
    assert [step.name for step in steps] == ["step-00003"]
