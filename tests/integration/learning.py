"""A run of a tiny model with recorded batches, for tests of trainer, scorer and replay without engine and gateway."""

from __future__ import annotations

import os
import random
import shutil
import signal
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from openclaw_core.config import load_config
from openclaw_core.config.schema import RunConfig
from openclaw_core.gateway.rendering import ChatRenderer
from openclaw_core.ledger import Ledger, StepRecord
from openclaw_core.loop.learner import Learner
from openclaw_core.loop.samples import build_sample
from openclaw_core.rundir import RunDir, create_run
from openclaw_core.types import Judgement, NextState, Question, Sample, Vote
from openclaw_core.weights.convert import convert_checkpoint
from openclaw_core.weights.layout import hf_directory, torch_dist_directory
from tests.models import VOCAB_SIZE, tiny_llama
from tests.unit.test_ledger import make_turn

_MODELS = tempfile.TemporaryDirectory(prefix="learning-models-")

BATCH = 4
HINTS = ("Please write plain sentences.", "Explain each number of the question in one sentence.")


def tiny_run(directory: Path, run_id: str = "r", **overrides: Any) -> RunDir:
    """A run of a tiny model, downloaded and converted; ``overrides`` with ``__`` for the dot."""
    settings = {
        "paths.models": str(directory / "models"),
        "paths.runs": str(directory / "runs"),
        "model.name": "tiny",
        "model.dtype": "fp32",
        "rollout.batch_size": BATCH,
        "optimizer.lr": 1e-3,
        "loss.max_logprob_diff": 50.0,
        "train.max_tokens_per_rank": 60,
        "train.threads": 1,
        "scorer.threads": 1,
        "train.steps": 6,
        **{name.replace("__", "."): value for name, value in overrides.items()},
    }
    config = load_config("local-cpu", settings)
    if not hf_directory(config).exists():
        shutil.copytree(_converted(config.model.dtype), config.paths.models, dirs_exist_ok=True)
    return create_run(config, run_id)


@cache
def _converted(dtype: str) -> Path:
    """A directory of models that holds the tiny one and its conversion: made once a session."""
    directory = Path(_MODELS.name) / dtype
    config = load_config("local-cpu", {"paths.models": str(directory), "model.name": "tiny", "model.dtype": dtype})
    tiny_llama(hf_directory(config), seed=3)
    convert_checkpoint(hf_directory(config), torch_dist_directory(config), config.model.dtype, print)
    return directory


def samples_of(config: RunConfig, ledger: Ledger) -> Callable[[StepRecord], list[Sample]]:
    """As the loop builds them."""
    renderer, label = ChatRenderer.from_pretrained(hf_directory(config)), config.judge.hint_label

    def build(record: StepRecord) -> list[Sample]:
        turns = ledger.turns(record.turn_ids)
        return [build_sample(judged, config, lambda hint: renderer.hint_ids(hint, label)) for judged in turns]

    return build


def record_batches(ledger: Ledger, steps: int, seed: int = 0) -> None:
    """Collected batches of ``BATCH`` judged turns, not trained yet; answers of different lengths, zero to two hints."""
    rng = random.Random(seed)
    for step in range(1, steps + 1):
        names = [f"turn-{step}-{i}" for i in range(BATCH)]
        for i, name in enumerate(names):
            prompt, response = (
                [rng.randrange(3, VOCAB_SIZE) for _ in range(rng.randint(*span))] for span in ((8, 20), (3, 12))
            )
            ledger.add_turn(
                make_turn(
                    name,
                    prompt_ids=tuple(prompt),
                    response_ids=tuple(response),
                    rollout_logprobs=tuple(-6.0 - rng.random() for _ in response),
                    hint_offset=5,
                )
            )
            ledger.set_next_state(name, NextState("user", "Hm."))
            reward, hints = rng.choice((1, -1)), HINTS[: i % 3]
            ledger.add_judgement(Judgement(name, reward, hints, (Vote(Question.REWARD, reward, None, ""),)))
        ledger.open_step(step, names)


async def train_recorded(run: RunDir, *, save_at: int = 0, kill_after: int = 0) -> str:
    """Train the recorded steps that are left, as the loop does; returns the checksum of the last weights.

    ``save_at``: step after which a checkpoint is written, 0: none. ``kill_after``: step after whose record this process
    sends itself SIGKILL, 0: none.
    """
    config, ledger = run.config(), Ledger(run.ledger_file)
    samples = samples_of(config, ledger)
    learner = Learner(config, run, ledger, samples)
    try:
        version = await learner.restore()
        for record in ledger.steps():
            if record.version is None:
                batch = samples(record)
                await learner.train(record.step, batch, {}, await learner.scores(batch))
                version += 1
                ledger.record_training(record.step, version, skipped=False, metrics={})
                learner.recorded()
                if record.step == kill_after:
                    os.kill(os.getpid(), signal.SIGKILL)
                await learner.published(await learner.weights(), version)
                if record.step == save_at:
                    await learner.save(record.step, version)
        return (await learner.weights()).checksum
    finally:
        learner.stop()
        ledger.close()
