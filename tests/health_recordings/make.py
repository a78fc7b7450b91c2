"""Makes the recordings of this directory: real runs of a tiny model, each with what is wrong with it.

Usage: python -m tests.health_recordings.make NAME …      (healthy, max_not_subtracted, lr_x100, no_length_limit, stale_engine)

Service, gateway, judge, trainer and engine are the product's, on Ray; the person who talks is below. What is wrong is an
override of the configuration or a subclass of the trainer, in RUNS: nothing in the product can be switched to it. The model
is a tiny llama that was taught, here, to answer in a few words; people like longer answers, and where nothing limits their
length, no answer is long enough. About a minute a run on two cores.
"""

from __future__ import annotations

import asyncio
import json
import random
import shutil
import sys
import tempfile
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import quantiles
from typing import Any

import ray
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM, AutoTokenizer

from openclaw_core.config import RunConfig, load_config
from openclaw_core.feeder.client import GatewayClient
from openclaw_core.log import configure_logging
from openclaw_core.loop.client import ControlClient, drive, drive_step, phase_deadlines
from openclaw_core.loop.service import serve
from openclaw_core.rundir import RunDir, create_run
from openclaw_core.trainer import group
from openclaw_core.trainer.worker import TrainerWorker
from openclaw_core.types import Message, TurnType
from openclaw_core.weights.convert import convert_checkpoint
from openclaw_core.weights.layout import hf_directory, torch_dist_directory
from tests.models import tiny_llama
from tests.ports import free_ports

HERE = Path(__file__).parent
STEPS = 24
LR = 3e-4
SETTINGS = {
    "model.name": "tiny",
    "model.context_length": 512,
    "train.steps": STEPS,
    "train.threads": 1,
    "train.token_tables": 0,
    "train.save_interval": STEPS,
    "engine.threads": 1,
    "rollout.batch_size": 16,
    "rollout.max_response_tokens": 32,
    "optimizer.lr": LR,
    "cluster.ray_object_store_mb": 200,
    "cluster.silence_s": 600,
}
QUESTIONS = (
    "Tom has three boxes with four apples each. How many apples are there?",
    "A train covers 60 miles in an hour. How far does it go in 3 hours?",
    "Maria bought 5 books at 7 dollars each. What did she pay?",
    "The class has 28 students and 16 like football. How many do not?",
)
PARTS = (
    "we add the numbers",
    "he has 12 apples",
    "the answer is 10",
    "it covers 180 miles",
    "she has 15 dollars",
    "half of it is 45",
)
LONGER = "Explain step by step with the numbers of the question."
"""The judge's hint for answers that are too short; the model knows what it means."""
WORDS = 11
"""People like answers of so many words or more."""


class MaxNotSubtracted(TrainerWorker):
    """ALGORITHM 9's warning come true: the teacher's normaliser lacks the row's maximum."""

    def build(self, hf_dir: str, base_checkpoint: str) -> None:
        super().build(hf_dir, base_checkpoint)
        scorer = self.step.scorer
        right = scorer._hinted_passes

        def wrong(batch: Any, hinted: Any) -> list[tuple[Tensor, Tensor, Tensor]]:
            passes = []
            for (i, _), (hidden, lse, ids) in zip(hinted, right(batch, hinted), strict=True):
                temperature = torch.full((len(ids),), batch.samples[i].temperature)
                peak = scorer._head.logits(scorer._require(scorer._teacher), hidden, ids[:, :1], temperature)[:, 0]
                passes.append((hidden, lse - peak, ids))
            return passes

        scorer._hinted_passes = wrong


class StalePublisher(TrainerWorker):
    """Every publish sends the weights of the first one, under a new version's number."""

    def build(self, hf_dir: str, base_checkpoint: str) -> None:
        super().build(hf_dir, base_checkpoint)
        publisher, first = self.publisher, list[tuple[str, Tensor]]()
        assert publisher is not None
        right = publisher.publish

        def stale(weights: Iterable[tuple[str, Tensor]]) -> Any:
            now = [(name, tensor.clone()) for name, tensor in weights]
            first.extend(now if not first else ())
            return right(iter(first))

        publisher.publish = stale


class Taste:
    """What people think of an answer of so many words. ``insatiable``: it must be longer than most of the last ones."""

    def __init__(self, insatiable: bool) -> None:
        self._insatiable = insatiable
        self._seen: deque[int] = deque([WORDS], maxlen=32)

    def likes(self, words: int) -> bool:
        least = quantiles(self._seen, n=10)[6] if self._insatiable and len(self._seen) > 1 else WORDS
        self._seen.append(words)
        return words >= least


@dataclass(frozen=True)
class Deviation:
    """What is wrong with a run."""

    overrides: dict[str, Any] = field(default_factory=dict)
    worker: type[TrainerWorker] = TrainerWorker
    insatiable: bool = False


RUNS = {
    "healthy": Deviation(),
    "max_not_subtracted": Deviation(worker=MaxNotSubtracted),
    "lr_x100": Deviation({"optimizer.lr": 100 * LR}),
    "no_length_limit": Deviation({"rollout.max_response_tokens": 440}, insatiable=True),
    "stale_engine": Deviation(worker=StalePublisher),
}


def taught_model(directory: Path) -> None:
    """A tiny llama that answers in 2 to 12 words and then stops; longer where it is asked to."""
    tiny_llama(directory, seed=3, dtype=torch.float32)
    tokenizer: Any = AutoTokenizer.from_pretrained(directory)
    model: Any = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(0.25)  # as large as usual: the tests' models are not meant to learn
    optimizer, rng = torch.optim.AdamW(model.parameters(), lr=3e-3), random.Random(0)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    for _ in range(120):
        rows = [_lesson(tokenizer, rng) for _ in range(16)]
        width = max(len(ids) for ids, _ in rows)
        ids = torch.tensor([row + [2] * (width - len(row)) for row, _ in rows])
        labels = torch.tensor([[-100] * begin + row[begin:] + [-100] * (width - len(row)) for row, begin in rows])
        logits = model(ids).logits[:, :-1]
        loss = cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.to(torch.bfloat16).save_pretrained(directory)


def _lesson(tokenizer: Any, rng: random.Random) -> tuple[list[int], int]:
    """Ids of a conversation, and where its answer begins."""
    hinted = rng.random() < 0.3
    question = rng.choice(QUESTIONS) + (f" {LONGER}" if hinted else "")
    parts = rng.choices(PARTS, k=rng.randint(2, 4) if hinted else rng.randint(1, 3))
    messages = [{"role": "user", "content": question}]
    prompt = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    begin = tokenizer(prompt, add_special_tokens=False).input_ids
    answer = tokenizer(", ".join(parts) + ".<|im_end|>", add_special_tokens=False).input_ids
    return begin + answer, len(begin)


async def person(config: RunConfig, key: str, number: int, taste: Taste) -> None:
    """Asks, and says what they think of the answer, for ever."""
    client, rng = GatewayClient(config, config.gateway_url, key), random.Random(number)
    session = 0
    while True:
        session += 1
        name = f"person-{number}-{session}"
        question: list[Message] = [{"role": "user", "content": rng.choice(QUESTIONS)}]
        answer = await client.chat(question, TurnType.MAIN, name)
        liked = taste.likes(len(answer.text.split()))
        await client.close_session(name, "Thanks!" if liked else "That is too short for me.")


async def train(config: RunConfig, run: RunDir, taste: Taste) -> None:
    """The service, its people and its driver, in one process."""
    service = asyncio.create_task(serve(run))
    people = [asyncio.create_task(person(config, run.secrets().api_key, i, taste)) for i in range(16)]
    try:
        await asyncio.to_thread(_drive, config, run)
    finally:
        for task in people:
            task.cancel()
        await asyncio.gather(*people, return_exceptions=True)
    await service


def _drive(config: RunConfig, run: RunDir) -> None:
    """To the last step, whatever the health rules say."""

    def lost() -> None:
        raise RuntimeError("the service is silent")

    with ControlClient.of(run, config) as client:
        step = partial(drive_step, client, deadlines=phase_deadlines(config))
        drive(client, step, reattach=lost, on_health=lambda health: print(health.in_words(), file=sys.stderr))  # noqa: T201
        client.shutdown()


def record(name: str, model: Path) -> None:
    """Make one recording, of a run that begins as ``model``."""
    deviation = RUNS[name]
    with tempfile.TemporaryDirectory(prefix="health-") as temporary:
        directory = Path(temporary)
        paths = {"paths.models": str(directory / "models"), "paths.runs": str(directory / "runs")}
        settings = SETTINGS | paths | deviation.overrides | free_ports()
        config = load_config("local-cpu", settings)
        shutil.copytree(model, hf_directory(config))
        convert_checkpoint(hf_directory(config), torch_dist_directory(config), config.model.dtype, lambda line: None)
        run = create_run(config, name)
        group.TrainerWorker = deviation.worker
        ray.init(address="local", num_cpus=1, include_dashboard=False, object_store_memory=200 * 2**20, log_to_driver=False)
        try:
            asyncio.run(train(config, run, Taste(deviation.insatiable)))
        finally:
            ray.shutdown()
        keep(run.metrics_file, HERE / f"{name}.jsonl")


def keep(metrics: Path, recording: Path) -> None:
    """The metrics of a run, without the verdict that it came to."""
    rows = [json.loads(line) for line in metrics.read_text().splitlines()]
    kept = [{key: value for key, value in row.items() if not key.startswith("health/")} for row in rows]
    recording.write_text("".join(f"{json.dumps(row)}\n" for row in kept))


if __name__ == "__main__":
    configure_logging()
    with tempfile.TemporaryDirectory(prefix="taught-") as model:
        taught_model(Path(model))
        for name in sys.argv[1:]:
            record(name, Path(model))
