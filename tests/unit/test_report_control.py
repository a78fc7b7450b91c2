"""The control API tells the driver a run's steps and two answers of each, and changes nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from openclaw_core.ledger import StepState
from openclaw_core.loop.control import ServiceState, create_control_app
from openclaw_core.loop.phases import PhaseRunner
from tests.unit.test_collect import World
from tests.unit.test_ledger import judged


@pytest.fixture
def world(tmp_path: Path) -> World:
    """Three steps of one turn each; the third is trained and not reported."""
    world = World(tmp_path)
    (tmp_path / "ledger.sqlite").symlink_to("l.sqlite")
    for step in (1, 2, 3):
        judged(world.ledger, f"t{step}", reward=(-1) ** step)
        world.ledger.open_step(step, [f"t{step}"])
        world.ledger.record_training(step, step, False, {"train/loss": step / 2})
        if step < 3:
            world.ledger.advance_step(step, StepState.REPORTED, {"train/loss": step / 2, "rollout/reward_mean": 0.5})
    return world


@pytest.fixture
async def api(world: World) -> AsyncIterator[httpx.AsyncClient]:
    state = ServiceState("run", 9, 2, "token", loop=world.loop, phases=PhaseRunner(world.loop))
    transport = httpx.ASGITransport(create_control_app(state, Path("export")))
    async with httpx.AsyncClient(transport=transport, base_url="http://c", headers={"Authorization": "Bearer token"}) as api:
        yield api


async def test_steps_that_are_reported_are_told_as_in_the_file(world: World, api: httpx.AsyncClient) -> None:
    rows = (await api.get("/steps")).json()["rows"]
    assert rows == [
        {"step": 1, "version": 1, "train/loss": 0.5, "rollout/reward_mean": 0.5},
        {"step": 2, "version": 2, "train/loss": 1.0, "rollout/reward_mean": 0.5},
    ]
    assert [row["step"] for row in (await api.get("/steps", params={"after": 1})).json()["rows"]] == [2]
    assert [row["step"] for row in (await api.get("/steps", params={"limit": 1})).json()["rows"]] == [1]
    assert (await api.get("/steps", params={"limit": 501})).status_code == 422


async def test_samples_of_a_step_whose_batch_has_closed(api: httpx.AsyncClient) -> None:
    first, third, ninth = [(await api.get(f"/steps/{step}/samples")).json()["samples"] for step in (1, 2, 9)]
    assert first["good"] is None and first["bad"]["turn_id"] == "t1"
    assert third["good"]["turn_id"] == "t2" and third["good"]["next_state"] == "Thanks!"
    assert ninth is None


async def test_nobody_without_the_token_reads_them(api: httpx.AsyncClient) -> None:
    api.headers["Authorization"] = "Bearer other"
    assert (await api.get("/steps")).status_code == 401
    assert (await api.get("/steps/1/samples")).status_code == 401


async def test_a_service_that_loads_has_none_yet() -> None:
    transport = httpx.ASGITransport(create_control_app(ServiceState("run", 9, 2, "token"), Path("export")))
    async with httpx.AsyncClient(transport=transport, base_url="http://c", headers={"Authorization": "Bearer token"}) as api:
        assert (await api.get("/steps")).status_code == 503
        assert (await api.get("/steps/1/samples")).status_code == 503
