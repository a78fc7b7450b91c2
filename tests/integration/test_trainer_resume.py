"""A trainer that resumes: with another number of ranks, and from the checkpoint before a damaged one."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from openclaw_core.ledger import Ledger
from openclaw_core.rundir import RunDir
from openclaw_core.trainer.group import TrainerGroup
from openclaw_core.trainer.parts import CheckpointError
from openclaw_core.types import Sample
from openclaw_core.weights.arrays import reading
from openclaw_core.weights.layout import hf_directory, torch_dist_directory
from tests.integration.learning import record_batches, samples_of, tiny_run

STEPS = 4


pytestmark = [pytest.mark.ranks, pytest.mark.usefixtures("ray_cluster")]


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    run = tiny_run(tmp_path)
    record_batches(ledger := Ledger(run.ledger_file), STEPS)
    ledger.close()
    return run


def batches(run: RunDir) -> list[list[Sample]]:
    ledger = Ledger(run.ledger_file)
    return [samples_of(run.config(), ledger)(record) for record in ledger.steps()]


class Trainer:
    """A trainer with ``tensor_parallel`` ranks for the duration of a block, at the run's newest whole checkpoint."""

    def __init__(self, run: RunDir, tensor_parallel: int = 1) -> None:
        train = run.config().train.model_copy(update={"tensor_parallel": tensor_parallel})
        self._run, self._config = run, run.config().model_copy(update={"train": train})

    async def __aenter__(self) -> Trainer:
        directories = hf_directory(self._config), torch_dist_directory(self._config)
        self.group = await TrainerGroup.start(self._config, *directories, self._run.checkpoints)
        self.at = await self.group.load()
        return self

    async def __aexit__(self, *_error: object) -> None:
        self.group.stop()

    async def step(self, step: int, save: bool = False) -> None:
        result = await self.group.train(step, batches(self._run)[step - 1], {})
        assert not result.skipped
        if save:
            await self.group.save(step, {"step": step, "version": step})

    async def weights(self) -> dict[str, torch.Tensor]:
        with reading((await self.group.weights()).reference[0]) as found:
            return {name: tensor.clone() for name, tensor in found.items()}


def apart(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    """Norm of the difference over the norm."""
    difference = sum(float((one[name] - tensor).square().sum()) for name, tensor in other.items()) ** 0.5
    return difference / sum(float(tensor.square().sum()) for tensor in other.values()) ** 0.5


async def test_one_rank_then_two_then_one_come_to_the_same_weights(run: RunDir) -> None:
    """The second step after each load shows the optimiser's state too."""
    async with Trainer(run) as one:
        start = await one.weights()
        await one.step(1)
        await one.step(2, save=True)
        await one.step(3)
        await one.step(4)
        straight = await one.weights()
    async with Trainer(run, tensor_parallel=2) as two:
        assert two.at == (2, 2)
        await two.step(3, save=True)
    async with Trainer(run) as back:
        assert back.at == (3, 3)
        await back.step(4)
        assert apart(await back.weights(), straight) < 1e-5 < apart(straight, start)


async def test_a_damaged_checkpoint_is_passed_over_for_the_one_before_and_made_again(
    run: RunDir, capsys: pytest.CaptureFixture[str]
) -> None:
    async with Trainer(run) as trainer:
        await trainer.step(1, save=True)
        await trainer.step(2, save=True)
        expected = await trainer.weights()
    (part,) = (run.checkpoints / "step_000002").glob("*.distcp")
    part.write_bytes(part.read_bytes()[:-100])
    async with Trainer(run) as trainer:
        assert trainer.at == (1, 1)
        said = capsys.readouterr().out
        assert "checkpoint_damaged" in said
        assert f"{part} on localhost has" in said
        assert "step_000001" in said
        await trainer.step(2, save=True)
        assert apart(await trainer.weights(), expected) == 0
    async with Trainer(run) as trainer:
        assert trainer.at == (2, 2)


async def test_a_run_whose_checkpoints_are_all_damaged_does_not_start_over(run: RunDir) -> None:
    async with Trainer(run) as trainer:
        await trainer.step(1, save=True)
    (part,) = (run.checkpoints / "step_000001").glob("*.distcp")
    part.unlink()
    with pytest.raises(CheckpointError, match=rf"no checkpoint below .* is whole; .*\n.*{part.name} on localhost is missing"):
        async with Trainer(run):
            pass
