"""Weights for an engine that comes back between two publishes: the published version or none, and never in a publish's way."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from openclaw_core.config import load_config
from openclaw_core.gateway.admission import WaitingRoom
from openclaw_core.judge import build_judge
from openclaw_core.ledger import Ledger
from openclaw_core.loop.intake import Intake
from openclaw_core.loop.loop import Loop
from openclaw_core.rundir import RunDir
from openclaw_core.weights.publish import PublishedWeights


class Learner:
    """Keeps the last weights that it was asked for, as the trainer does. ``gate``: it is busy until that is open."""

    def __init__(self) -> None:
        self.version, self.made, self.gate = 4, list[PublishedWeights](), asyncio.Event()
        self.gate.set()

    async def weights(self) -> PublishedWeights:
        await self.gate.wait()
        self.made.append(PublishedWeights("checksum", [], generation=len(self.made) + 1))
        return self.made[-1]

    async def published(self, weights: PublishedWeights, version: int) -> None: ...


class Engine:
    """Takes weights while its ``gate`` is open."""

    def __init__(self) -> None:
        self.taken, self.loading, self.gate = list[PublishedWeights](), asyncio.Event(), asyncio.Event()
        self.gate.set()

    async def pause(self) -> None: ...

    async def resume(self) -> None: ...

    async def load_weights(self, weights: PublishedWeights, version: int, checksum: str) -> None:
        self.loading.set()
        await self.gate.wait()
        self.taken.append(weights)


@pytest.fixture
async def loop(tmp_path: Path) -> Loop:
    config, ledger, learner, engine = load_config("local-cpu"), Ledger(tmp_path / "l.sqlite"), Learner(), Engine()
    room = WaitingRoom(hold_max_s=60, hold_max_requests=9)
    intake = Intake(ledger, build_judge(config), room.notify, config, lambda hint: ())
    parts: Any = (learner, engine)
    made = Loop(config, RunDir(tmp_path), ledger, intake, room, *parts, lambda hint: ())
    await made.resume()
    return made


async def test_the_published_version_is_made_once_more(loop: Loop) -> None:
    again = await loop.weights_again(4)
    assert again is not None and again.generation == 2


async def test_it_waits_for_a_publish_whose_weights_would_be_gone(loop: Loop) -> None:
    engine: Any = loop.engine
    engine.gate.clear()
    engine.loading.clear()
    loop.version = 5
    publishing = asyncio.create_task(loop._publish_weights())
    await engine.loading.wait()
    again = asyncio.create_task(loop.weights_again(5))
    await asyncio.sleep(0.01)
    learner: Any = loop.learner
    assert len(learner.made) == 2, "nobody asks while the engines take the second"
    engine.gate.set()
    await publishing
    assert engine.taken == learner.made[:2]
    assert await again is learner.made[2]


async def test_another_version_is_not_to_be_had(loop: Loop) -> None:
    learner: Any = loop.learner
    assert await loop.weights_again(3) is None
    assert len(learner.made) == 1
    # A step is trained while it waits: its publish brings newer ones.
    learner.gate.clear()
    again = asyncio.create_task(loop.weights_again(4))
    await asyncio.sleep(0.01)
    loop.version = 5
    learner.gate.set()
    assert await again is None
