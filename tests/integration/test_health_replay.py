"""A weight that the health rules lowered is trained with again when the step is replayed, to the last bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from openclaw_core.health import w_opd_in_force
from openclaw_core.ledger import Ledger, StepState
from openclaw_core.loop.learner import Learner
from openclaw_core.rundir import RunDir
from tests.integration.learning import record_batches, samples_of, tiny_run

pytestmark = pytest.mark.usefixtures("ray_cluster")
STEPS = 3


def world(run: RunDir) -> tuple[Ledger, Learner]:
    ledger = Ledger(run.ledger_file)
    return ledger, Learner(run.config(), run, ledger, samples_of(run.config(), ledger))


async def train(run: RunDir, *, lowered: bool) -> list[float]:
    """The recorded steps, as the loop does them; from step 2 on OPD is found too strong. The weights in force."""
    ledger, learner = world(run)
    config, rows = run.config(), list[dict[str, Any]]()
    try:
        await learner.restore()
        for record in ledger.steps():
            samples = samples_of(config, ledger)(record)
            w_opd = w_opd_in_force(rows[-1] if rows else None, config)
            result = await learner.train(record.step, samples, {}, await learner.scores(samples), w_opd)
            metrics = result.metrics | {"train/w_opd": w_opd, "health/findings": {"opd_strong": 1} if lowered else {}}
            ledger.record_training(record.step, record.step, skipped=False, metrics=metrics)
            ledger.advance_step(record.step, StepState.REPORTED)
            learner.recorded()
            rows.append({"step": record.step, **metrics})
        (run.path / "checksum").write_text((await learner.weights()).checksum)
    finally:
        learner.stop()
        ledger.close()
    return [row["train/w_opd"] for row in rows]


async def replayed(run: RunDir) -> str:
    """Of the weights that a new service comes to; there is no checkpoint."""
    ledger, learner = world(run)
    try:
        assert await learner.restore() == STEPS
        return (await learner.weights()).checksum
    finally:
        learner.stop()
        ledger.close()


async def test_a_replay_trains_with_the_weights_that_were_in_force(tmp_path: Path):
    runs: dict[str, RunDir] = {}
    for name in ("lowered", "plain"):
        run = runs[name] = tiny_run(tmp_path, name, train__steps=STEPS, health__on_warn="lower_w_opd")
        record_batches(ledger := Ledger(run.ledger_file), STEPS)
        ledger.close()
    assert await train(runs["lowered"], lowered=True) == [1.0, 0.5, 0.25]
    assert await train(runs["plain"], lowered=False) == [1.0, 1.0, 1.0]
    lowered, plain = ((run.path / "checksum").read_text() for run in runs.values())
    assert lowered != plain, "the weight must reach the loss"
    assert await replayed(runs["lowered"]) == lowered
