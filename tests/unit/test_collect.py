"""Collecting a batch: strictly on-policy, without a deadlock, and never the same turn twice."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from openclaw_core.config import load_config
from openclaw_core.gateway.admission import WaitingRoom
from openclaw_core.judge import build_judge
from openclaw_core.ledger import Ledger, TurnStatus
from openclaw_core.loop.intake import Intake
from openclaw_core.loop.learner import Learner
from openclaw_core.loop.loop import Loop, LoopError
from openclaw_core.rundir import RunDir
from openclaw_core.types import NextState, TurnType
from tests.unit.test_ledger import judged, make_turn


class World:
    """A loop with its real ledger, intake and waiting room; trainer and engines are not asked while collecting."""

    def __init__(self, path: Path, **overrides: Any) -> None:
        self.config = load_config("local-cpu", {"rollout.batch_size": 2, "rollout.reaction_grace_s": 5, **overrides})
        self.ledger = Ledger(path / "l.sqlite")
        self.room = WaitingRoom(hold_max_s=60, hold_max_requests=9, batch_size=2, occupancy=lambda: self.loop.occupancy)
        self.intake = Intake(self.ledger, build_judge(self.config), self.room.notify, self.config, lambda hint: ())
        run = RunDir(path)
        learner = Learner(self.config, run, self.ledger, lambda record: self.loop.samples(record))
        self.loop = Loop(self.config, run, self.ledger, self.intake, self.room, learner, [], lambda hint: ())

    async def converse(self, turn_id: str, version: int) -> None:
        """A user whose request waits for admission, is answered, and thanks."""
        async with self.room.admit(TurnType.MAIN):
            self.intake.turn(make_turn(turn_id, weight_version=version))
        self.intake.next_state(turn_id, NextState("user", "Thanks!"))


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


async def test_a_batch_closes_with_the_first_turns_judged_and_holds_the_next_ones(world: World) -> None:
    users = [asyncio.create_task(world.converse(name, version=0)) for name in ("a", "b", "c")]
    assert await asyncio.wait_for(world.loop.collect(1), 10) == {"samples": 2}
    record = world.ledger.step(1)
    assert record is not None
    assert set(record.turn_ids) == {"a", "b"}
    await asyncio.sleep(0.05)
    assert world.room.queue == 1  # c waits for the new weights
    assert await world.loop.collect(1) == {"samples": 2}  # asked again: the same batch
    for user in users:
        user.cancel()


async def test_stale_leftovers_are_dropped_and_give_their_places_to_who_waits(world: World) -> None:
    world.loop.version = 3
    judged(world.ledger, "old-1")  # of version 0
    judged(world.ledger, "old-2")
    users = [asyncio.create_task(world.converse(name, version=3)) for name in ("a", "b")]
    await asyncio.wait_for(world.loop.collect(1), 10)
    await asyncio.gather(*users)
    record = world.ledger.step(1)
    assert record is not None
    assert set(record.turn_ids) == {"a", "b"}
    assert world.ledger.drops(1) == {"stale": 2}
    assert world.ledger.count(TurnStatus.DROPPED) == 2


async def test_a_collection_that_nobody_feeds_says_what_it_waited_for(tmp_path: Path) -> None:
    world = World(tmp_path, **{"rollout.collect_deadline_s": 0.01})
    with pytest.raises(LoopError, match="step 1: 0 of 2 turns; no request has come lately after rollout"):
        await world.loop.collect(1)
