"""Phases run once per step however often they are asked for, and in order."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from openclaw_core.config import load_config
from openclaw_core.ledger import Ledger, StepState
from openclaw_core.loop.phases import PhaseConflict, PhaseRunner
from tests.unit.test_ledger import judged


class Verbs:
    """A loop whose collect waits for a gate; the ledger is the real one."""

    def __init__(self, path: Path) -> None:
        self.config = load_config("local-cpu", {"train.steps": 2})
        self.ledger = Ledger(path / "ledger.sqlite")
        self.gate = asyncio.Event()
        self.calls: list[tuple[str, int]] = []
        self.fail = False

    async def collect(self, step: int) -> dict[str, Any]:
        self.calls.append(("collect", step))
        await self.gate.wait()
        if self.fail:
            raise RuntimeError("the feeder is gone")
        return {"samples": 3}

    async def report(self, step: int) -> dict[str, Any]:
        self.calls.append(("report", step))
        self.ledger.advance_step(step, StepState.REPORTED)
        return {}

    score = train = publish = report


@pytest.fixture
def verbs(tmp_path: Path) -> Verbs:
    return Verbs(tmp_path)


@pytest.fixture
def runner(verbs: Verbs) -> PhaseRunner:
    return PhaseRunner(verbs)  # type: ignore[arg-type]


async def test_two_requests_for_a_phase_are_one_execution(verbs: Verbs, runner: PhaseRunner) -> None:
    first, second = asyncio.create_task(runner.run(1, "collect", 5)), asyncio.create_task(runner.run(1, "collect", 5))
    await asyncio.sleep(0.01)
    assert runner.current == (1, "collect")
    verbs.gate.set()
    assert await first == await second == {"samples": 3}
    assert verbs.calls == [("collect", 1)]
    assert runner.current is None


async def test_a_phase_that_takes_longer_than_the_wait_goes_on(verbs: Verbs, runner: PhaseRunner) -> None:
    assert await runner.run(1, "collect", 0.01) is None
    verbs.gate.set()
    assert await runner.run(1, "collect", 5) == {"samples": 3}
    assert verbs.calls == [("collect", 1)]


async def test_a_failed_phase_is_tried_anew(verbs: Verbs, runner: PhaseRunner) -> None:
    verbs.fail = True
    verbs.gate.set()
    with pytest.raises(RuntimeError, match="the feeder is gone"):
        await runner.run(1, "collect", 5)
    verbs.fail = False
    assert await runner.run(1, "collect", 5) == {"samples": 3}
    assert verbs.calls == [("collect", 1), ("collect", 1)]


@pytest.mark.parametrize(("step", "phase"), [(2, "collect"), (0, "collect"), (3, "collect"), (1, "sing")])
async def test_what_is_out_of_order_is_refused(runner: PhaseRunner, step: int, phase: str) -> None:
    with pytest.raises(PhaseConflict):
        await runner.run(step, phase, 0)


async def test_another_phase_is_refused_while_one_is_at_work(verbs: Verbs, runner: PhaseRunner) -> None:
    await runner.run(1, "collect", 0)
    await asyncio.sleep(0)
    with pytest.raises(PhaseConflict, match="step 1 is in phase 'collect'"):
        await runner.run(1, "report", 0)


async def test_a_stop_does_not_wait_for_a_collection_that_nobody_feeds(runner: PhaseRunner) -> None:
    waiting = asyncio.create_task(runner.run(1, "collect", 30))
    await asyncio.sleep(0.01)
    await asyncio.wait_for(runner.finish(), 5)
    assert runner.current is None
    with pytest.raises(PhaseConflict, match="the service is stopping"):
        await waiting


async def test_the_next_step_may_begin_when_the_one_before_is_reported(verbs: Verbs, runner: PhaseRunner) -> None:
    verbs.gate.set()
    judged(verbs.ledger, "a")
    verbs.ledger.open_step(1, ["a"])
    await runner.run(1, "collect", 5)
    await runner.run(1, "report", 5)
    assert await runner.run(2, "collect", 5) == {"samples": 3}
