"""One rank of test_trainer_guards.py: steps of the worker, one of them with a gradient that is not finite on one rank.

Usage: python -m tests.integration.guard_child REQUEST OUT RANK WORLD_SIZE PORT
"""

from __future__ import annotations

import hashlib
import pickle
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch


def main(request_file: str, out: str, rank: str, world_size: str, port: str) -> None:
    from openclaw_core.config import load_config
    from openclaw_core.trainer.worker import TrainerWorker
    from tests.children import tcp_store

    request = pickle.loads(Path(request_file).read_bytes())
    config = load_config("local-cpu", {"train.max_tokens_per_rank": 60, **request["overrides"]})
    worker = TrainerWorker(config.model_dump_json(), request["hf"], int(rank), int(world_size))
    worker.store = tcp_store(world_size, port)
    worker.join(("127.0.0.1", int(port)), config.train.tensor_parallel, threads=1)
    worker.build(request["hf"], request["start"])

    answers = []
    healthy = worker.step
    for step in (1, 2, 3):
        worker.step = Poisoned(healthy, worker, request["sample"]) if step == 2 and int(rank) == request["rank"] else healthy
        before = digest(worker)
        result = worker.train(step, request["samples"], {}, None)
        answers.append({"result": result, "changed": digest(worker) != before, "finite": finite(worker)})
    Path(f"{out}.{rank}").write_bytes(pickle.dumps((answers, publish_broken(worker))))


class Poisoned:
    """The step, but the gradient of the micro-batch with one sample is NaN on this rank; its loss and log-probs are not."""

    def __init__(self, step: Any, worker: Any, sample: str) -> None:
        self._step, self._parameter, self._sample = step, next(worker.gpt.parameters()), sample

    def weigh_opd(self, w_opd: float) -> None:
        self._step.weigh_opd(w_opd)

    def __call__(self, batch: Any, *arguments: Any, **options: Any) -> Any:
        outcome = self._step(batch, *arguments, **options)
        if self._sample not in [s.sample_id for s in batch.samples]:
            return outcome
        zero = (self._parameter.float() * 0).sum()
        zero.register_hook(lambda gradient: gradient * float("nan"))
        return replace(outcome, loss=outcome.loss + zero)


def digest(worker: Any) -> str:
    return hashlib.sha256(b"".join(p.detach().float().numpy().tobytes() for p in worker.gpt.parameters())).hexdigest()


def finite(worker: Any) -> bool:
    return all(bool(torch.isfinite(p).all()) for p in worker.gpt.parameters())


def publish_broken(worker: Any) -> str:
    """What publishing says once a weight of the last rank is NaN."""
    if worker.rank == worker.config.train.tensor_parallel - 1:
        next(worker.gpt.parameters()).data.view(-1)[0] = float("nan")
    worker.look_at_weights()
    try:
        worker.weights()
    except FloatingPointError as error:
        return str(error)
    return "nothing"


if __name__ == "__main__":
    main(*sys.argv[1:])
