"""The loop and its driver: a step's verdict in the ledger and in /status, the checkpoint before a stop, who is told when."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import httpx
import pytest

from openclaw_core.config import load_config
from openclaw_core.gateway.admission import WaitingRoom
from openclaw_core.health import Health
from openclaw_core.health.status import HealthStatus, HealthStop
from openclaw_core.judge import build_judge
from openclaw_core.ledger import Ledger, StepState
from openclaw_core.loop.client import PHASES, ControlClient, ServiceStatus, drive, drive_step, phase_deadlines
from openclaw_core.loop.control import ServiceState, create_control_app
from openclaw_core.loop.intake import Intake
from openclaw_core.loop.loop import Loop
from openclaw_core.loop.phases import PhaseRunner
from openclaw_core.rundir import RunDir
from tests.control_stub import TOKEN, StubService
from tests.unit.test_ledger import judged

DEADLINES = phase_deadlines(load_config("local-cpu"))


@dataclass
class Learner:
    """Notes the steps whose weights it was asked to save; it has none."""

    saved: list[int] = field(default_factory=list)
    version: int = 0
    doing: str = ""

    async def save(self, step: int, version: int) -> str:
        self.saved.append(step)
        return ""


class World:
    """A loop that reports steps with gradients as given; before ``report`` nothing is to be done here."""

    def __init__(self, path: Path, **health: Any) -> None:
        overrides = {f"health.{name}": value for name, value in health.items()}
        self.config = load_config("local-cpu", {"train.steps": 20, "train.save_interval": 20, **overrides})
        self.ledger, self.learner = Ledger(path / "l.sqlite"), Learner()
        self.run, self.told = RunDir(path), list[Health]()
        self.loop = self.started()

    def started(self) -> Loop:
        """As when a service starts."""
        room = WaitingRoom(hold_max_s=60, hold_max_requests=9)
        intake = Intake(self.ledger, build_judge(self.config), room.notify, self.config, lambda hint: ())
        parts: Any = (self.learner, [])
        loop = Loop(self.config, self.run, self.ledger, intake, room, *parts, lambda hint: ())
        loop.tell_health = self.told.append
        return loop

    async def report(self, *grad_norms: float) -> Self:
        for grad_norm in grad_norms:
            step = self.ledger.next_step()
            judged(self.ledger, f"turn-{step}")
            self.ledger.open_step(step, [f"turn-{step}"])
            self.ledger.record_training(step, step, False, {"train/grad_norm": grad_norm, "train/w_opd": 1.0})
            self.ledger.advance_step(step, StepState.PUBLISHED)
            await self.loop.report(step)
        return self


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


async def test_every_step_carries_its_verdict(world: World):
    await world.report(3, 60, 60, 60)
    rows = [json.loads(line) for line in world.run.metrics_file.read_text().splitlines()]
    assert [row["health/state"] for row in rows] == ["healthy", "healthy", "healthy", "stop"]
    assert rows[3]["health/findings"] == {"grad_norm_high": 2, "grad_norm_diverging": 2}
    assert [row["health/action"] for row in rows] == [None, None, None, "stop"]


@pytest.mark.parametrize(("action", "saved"), [("stop", [3]), ("pause", [3]), ("notify", [])])
async def test_before_a_run_is_stopped_its_weights_are_saved(tmp_path: Path, action: str, saved: list[int]):
    world = await World(tmp_path, on_stop=action).report(60, 60, 60, 60)
    assert world.learner.saved == saved


async def test_a_change_is_told_once_also_when_the_service_restarts(world: World):
    await world.report(60, 60, 60)
    assert [(health.verdict.step, health.action) for health in world.told] == [(3, "stop")]
    before = world.loop.health
    world.loop = world.started()
    await world.loop.report(3)  # the driver asks again
    world.loop.metrics_file.rebuild()
    await world.report(60)
    assert len(world.told) == 1
    assert before.verdict.findings[1].since == world.loop.health.verdict.findings[1].since == 1


async def test_status_says_what_is_wrong(world: World):
    await world.report(60, 60, 60)
    state = ServiceState("run", 20, 1, "token", loop=world.loop, phases=PhaseRunner(world.loop))
    transport = httpx.ASGITransport(create_control_app(state, Path("export")))
    headers = {"Authorization": "Bearer token"}
    async with httpx.AsyncClient(transport=transport, base_url="http://control", headers=headers) as api:
        health = ServiceStatus.model_validate((await api.get("/status")).json()).health
        assert (health.step, health.state, health.changed, health.action) == (3, "stop", True, "stop")
        assert health.in_words().splitlines()[2].startswith("Training diverges: grad_norm = 60, over 50, since step 1; lower")
        state.end()
        assert ServiceStatus.model_validate((await api.get("/status")).json()).health == HealthStatus()


class IllService(StubService):
    """Says after a step what ``said`` has for it."""

    def __init__(self) -> None:
        super().__init__(steps=3)
        self.said: dict[int, dict[str, Any]] = {}

    def status(self) -> dict[str, Any]:
        status = super().status()
        return status | {"health": self.said.get(status["step"], {})}


@pytest.fixture
def service() -> IllService:
    return IllService()


@pytest.fixture
def client(service: IllService) -> Iterator[ControlClient]:
    with service.serving() as url, ControlClient(url, TOKEN, silence_s=0.5) as client:
        yield client


def driven(client: ControlClient, **hooks: Any) -> ServiceStatus:
    return drive(client, lambda step: drive_step(client, step, DEADLINES), lambda: pytest.fail("nothing was lost"), **hooks)


STOP = {"step": 2, "state": "stop", "changed": True, "findings": [{"text": "Training diverges; lower lr"}]}


@pytest.mark.parametrize(("action", "how"), [("stop", "stopped: "), ("pause", "only a run in Prefect can be held")])
def test_the_driver_stops_after_the_step_and_a_retry_goes_on(service: IllService, client: ControlClient, action: str, how: str):
    service.said[2] = STOP | {"action": action}
    with pytest.raises(HealthStop, match=f"(?s){how}.*health after step 2: stop.*Training diverges; lower lr.*a retry goes on"):
        driven(client)
    assert service.done == [(step, phase) for step in (1, 2) for phase in PHASES]
    assert driven(client).state == "finished"
    assert service.done == [(step, phase) for step in (1, 2, 3) for phase in PHASES]


def test_the_verdict_of_every_step_reaches_whoever_wants_it(service: IllService, client: ControlClient):
    service.said = {step: STOP | {"step": step, "action": "notify"} for step in (1, 2, 3)}
    heard: list[HealthStatus] = []
    driven(client, on_health=heard.append)
    assert [health.step for health in heard] == [1, 2, 3]


def test_what_is_only_told_stops_nobody(service: IllService, client: ControlClient):
    service.said = {1: STOP | {"action": "notify"}, 2: STOP | {"action": "lower_w_opd"}, 3: STOP | {"action": None}}
    assert driven(client).state == "finished"
