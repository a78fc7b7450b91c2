"""The control API's word about the judge, and what feeders tell it about an answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from openclaw_core.ledger import Outcome
from openclaw_core.loop.control import ServiceState, create_control_app
from openclaw_core.loop.phases import PhaseRunner
from openclaw_core.types import NextState
from tests.unit.test_collect import World
from tests.unit.test_ledger import make_turn

OUTCOME = {"persona": "teacher", "satisfied": False, "relevant": True, "first": True, "problem": 3}


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@pytest.fixture
def state(world: World) -> ServiceState:
    state = ServiceState("run", 3, 2, "token", loop=world.loop, phases=PhaseRunner(world.loop))
    state.advice = lambda: world.intake.judge.outage.alert
    return state


@pytest.fixture
async def api(state: ServiceState) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(create_control_app(state, Path("export")))
    async with httpx.AsyncClient(
        transport=transport, base_url="http://control", headers={"Authorization": "Bearer token"}
    ) as client:
        yield client


async def test_the_known_answer_is_kept_with_the_outcome_and_refuses_hints(world: World, api: httpx.AsyncClient) -> None:
    world.intake.turn(make_turn("a", session_id="s"))
    world.intake.next_state("a", NextState("user", "That sounds cold."))
    async with asyncio.timeout(5):
        while not world.intake.ready:
            await world.intake.changed(0.01)
    (before,) = world.ledger.ready()
    answer = before.judgement.hints[-1]
    response = await api.post("/sessions/s/outcome", json=OUTCOME | {"ground_truth": answer})
    assert response.status_code == 204
    assert world.ledger.outcomes(1) == [Outcome("s", "teacher", True, False, True, 3, answer)]
    (after,) = world.ledger.ready()
    assert set(before.judgement.hints) - set(after.judgement.hints) >= {answer}
    assert (answer, "quotes_answer") in after.judgement.refused


@pytest.mark.parametrize("ground_truth", [{}, {"ground_truth": None}])
async def test_an_outcome_without_a_known_answer_is_one_too(
    world: World, api: httpx.AsyncClient, ground_truth: dict[str, Any]
) -> None:
    assert (await api.post("/sessions/s/outcome", json=OUTCOME | ground_truth)).status_code == 204
    assert world.ledger.session_facts.known_answer("s") is None


async def test_status_says_that_the_judge_is_away(world: World, api: httpx.AsyncClient) -> None:
    status = (await api.get("/status")).json()
    assert status["judge"] == {"unavailable": 0, "away_s": 0.0, "alert": None}
    world.intake.judge.outage.failed(("reward",), "401: set OPENCLAW_JUDGE_API_KEY", denied=True)  # type: ignore[arg-type]
    status = (await api.get("/status")).json()
    assert "judge_unavailable" in status["waiting_for"] and "401" in status["waiting_for"]
    assert status["judge"]["alert"] == status["advice"]
    assert "OPENCLAW_JUDGE_API_KEY" in status["advice"]
    world.intake.judge.outage.stop()


async def test_status_answers_while_the_parts_end(world: World, state: ServiceState, api: httpx.AsyncClient) -> None:
    assert (await api.get("/status")).json()["state"] == "ready"
    state.end()
    world.ledger.close()
    told = (await api.get("/status")).json()
    assert (told["state"], told["error"]) == ("failed", "the service is stopping")


async def test_a_number_that_json_does_not_have_is_null(state: ServiceState, api: httpx.AsyncClient) -> None:
    state.engines = lambda: [{"grad_norm": float("nan"), "loss": float("inf")}]
    assert (await api.get("/status")).json()["engines"] == [{"grad_norm": None, "loss": None}]
