"""Whatever fails, at whatever moment: the weights that are trained, published and saved are those of the ledger."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from openclaw_core.ledger import Ledger
from openclaw_core.loop.learner import Learner
from openclaw_core.rundir import RunDir
from openclaw_core.trainer.group import TrainerError
from openclaw_core.trainer.parts import CheckpointError
from openclaw_core.types import Sample
from tests.integration.learning import record_batches, samples_of, tiny_run

STEPS = 3


pytestmark = [pytest.mark.ranks, pytest.mark.usefixtures("ray_cluster")]


class World:
    """A learner on recorded batches, driven as the loop drives it."""

    def __init__(self, run: RunDir) -> None:
        self.run, self.ledger = run, Ledger(run.ledger_file)
        self.learner = Learner(run.config(), run, self.ledger, samples_of(run.config(), self.ledger))

    def samples(self, step: int) -> list[Sample]:
        record = self.ledger.step(step)
        assert record is not None
        return samples_of(self.run.config(), self.ledger)(record)

    async def train(self, step: int, *, record: bool = True) -> None:
        samples = self.samples(step)
        result = await self.learner.train(step, samples, {}, await self.learner.scores(samples))
        assert not result.skipped
        if record:
            self.ledger.record_training(step, step, skipped=False, metrics=result.metrics)
            self.learner.recorded()
            await self.learner.published(await self.learner.weights(), step)

    async def checksum(self) -> str:
        return (await self.learner.weights()).checksum


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of runs with the same recorded batches."""
    directory = tmp_path_factory.mktemp("learner")
    separate = {"scorer__placement": "separate"}
    runs: dict[str, dict[str, Any]] = {
        "undisturbed": separate,
        "disturbed": separate,
        "alone": {},
        "pair": {"train__data_parallel": 2},
    }
    for name, changes in runs.items():
        run = tiny_run(directory, name, train__steps=STEPS, **changes)
        record_batches(ledger := Ledger(run.ledger_file), STEPS)
        ledger.close()
    return directory / "runs"


@pytest.fixture
async def world(recorded: Path) -> AsyncIterator[Any]:
    worlds: list[World] = []

    async def build(name: str) -> World:
        worlds.append(World(RunDir(recorded / name)))
        await worlds[-1].learner.restore()
        return worlds[-1]

    yield build
    for made in worlds:
        made.learner.stop()


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


async def test_an_update_that_was_not_recorded_is_made_again_from_the_recorded_weights(world: Any) -> None:
    straight = await world("undisturbed")
    for step in range(1, STEPS + 1):
        await straight.train(step)
    expected = await straight.checksum()
    straight.learner.stop()

    disturbed = await world("disturbed")
    await disturbed.train(1)
    await disturbed.train(2, record=False)  # the ledger's disk was full, say
    await disturbed.learner.save(1, 1)  # holds step 1, not what came after it
    await disturbed.train(2)
    # Trainer and scorer are lost together.
    trainer, scorer = disturbed.learner.trainer, disturbed.learner.scorer
    assert trainer is not None and scorer is not None
    for pid in (
        *await trainer.ranks.call("__ray_call__", lambda _: os.getpid()),
        *await scorer.copies[0].call("__ray_call__", lambda _: os.getpid()),
    ):
        kill(pid)
    await disturbed.train(3)
    assert await disturbed.checksum() == expected


async def test_weights_that_cannot_be_restored_are_not_replaced_by_the_start_model(world: Any) -> None:
    alone = await world("alone")
    await alone.train(1)
    await alone.learner.save(1, 1)
    (part,) = (alone.run.checkpoints / "step_000001").glob("*.distcp")
    content = part.read_bytes()
    part.write_bytes(content[:-1])

    # A call that fails on new ranks too is an error; here there are none, since no checkpoint is whole.
    greedy = [replace(sample, temperature=0.0) for sample in alone.samples(2)]
    with pytest.raises(CheckpointError, match="is whole"):
        await alone.learner.train(2, greedy, {}, None)
    with pytest.raises(CheckpointError, match="is whole"):
        await alone.checksum()

    part.write_bytes(content)
    with pytest.raises(TrainerError, match="greedy turns are not trainable"):
        await alone.learner.train(2, greedy, {}, None)
    assert await alone.checksum()  # and the next call is served by sound ones
    assert alone.learner.version == 1


async def test_a_rank_that_is_killed_while_its_peer_waits_for_it_costs_no_step(world: Any) -> None:
    pair = await world("pair")
    await pair.train(1)
    (_, pid) = await pair.learner.trainer.ranks.call("__ray_call__", lambda _: os.getpid())
    kill(pid)
    await pair.train(2)
    after = await pair.checksum()
    pair.learner.stop()
    assert await pair.checksum() == after  # by replay
