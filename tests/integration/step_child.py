"""One rank of the tests of the trainer's step: loss, metric sums and gradients of its share, by the worker's own code.

Usage: python -m tests.integration.step_child REQUEST OUT RANK WORLD_SIZE PORT

REQUEST pickles a list of jobs: ``hf``, ``policy`` and ``start`` (torch_dist directories), ``samples``, ``probe`` and ``cases``,
each with ``overrides`` of the configuration (the layout of ranks is the same in all), ``form`` and ``sabotage`` (see SABOTAGE).
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from openclaw_core.config import load_config
from openclaw_core.config.schema import RunConfig
from openclaw_core.weights.spec import ModelSpec


def main(request_file: str, out: str, rank: str, world_size: str, port: str) -> None:
    from openclaw_core.trainer.worker import TrainerWorker
    from tests.children import tcp_store

    jobs = pickle.loads(Path(request_file).read_bytes())
    first = configuration(jobs[0]["cases"][0])
    worker = TrainerWorker(first.model_dump_json(), jobs[0]["hf"], int(rank), int(world_size))
    worker.store = tcp_store(world_size, port)
    worker.join(("127.0.0.1", int(port)), first.train.tensor_parallel, threads=1)
    answers = [[answer(worker, job, case) for case in job["cases"]] for job in jobs]
    Path(f"{out}.{rank}").write_bytes(pickle.dumps(answers))


def configuration(case: dict[str, Any]) -> RunConfig:
    return load_config("local-cpu", {"model.dtype": "fp32", **case["overrides"]})


def answer(worker: Any, job: dict[str, Any], case: dict[str, Any]) -> dict[str, Any]:
    """The case on a model made anew."""
    worker.config, worker.spec = configuration(case), ModelSpec.from_hf(Path(job["hf"]))
    worker.build(job["hf"], job["start"])
    from openclaw_core.trainer import checkpoint

    checkpoint.load(Path(job["policy"]), worker.spec, worker.gpt)
    with SABOTAGE[case.get("sabotage")](worker):
        return gradient(worker, job["samples"], job["probe"], case)


def gradient(worker: Any, samples: list[Any], probe: dict[str, Any], case: dict[str, Any]) -> dict[str, Any]:
    """The case's ``form``: cheap, general (the old policy is a pass of its own), scored (by a scorer), general_scored.

    ``split``: into so many micro-batches, of equal size and mixed lengths, whatever the limit of tokens.
    """
    from openclaw_core.trainer.packing import MicroBatch
    from openclaw_core.trainer.worker import RankResult

    form, split, scores = case.get("form", "cheap"), case.get("split"), None
    batches = [MicroBatch.of(samples[i::split]) for i in range(split)] if split else worker.micro_batches(samples)
    if "scored" in form:
        scores = {sample.sample_id: worker.step.scorer.score(sample, version=0) for sample in samples}
    before = [worker.step.evaluate(batch, scores) if "general" in form else None for batch in batches]
    result = RankResult()
    sums = worker.accumulate(1, batches, len(samples), probe, scores, result, before)
    from openclaw_core.losses import add_sums

    worker.optimizer.prepare_grads()
    return {
        "grad_norm": float(worker.optimizer.get_grad_norm()),
        "sums": {name: float(value) for name, value in add_sums(sums).items()},
        "masked": {name: reason.value for name, reason in result.masked.items()},
        "gradients": {name: parameter.main_grad.clone() for name, parameter in worker.gpt.named_parameters()},
        "micro_batches": len(batches),
        "table": result.table,
    }


@contextmanager
def replaced(module: Any, name: str, value: Any) -> Iterator[None]:
    original = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, original)


@contextmanager
def intact(worker: Any) -> Iterator[None]:
    yield


@contextmanager
def mean_of_micro_batch(worker: Any) -> Iterator[None]:
    """N is that of the micro-batch, not of the global batch."""
    from openclaw_core.trainer import step

    whole = step.token_weights

    def local(mask: torch.Tensor, index: torch.Tensor, *, global_samples: int) -> torch.Tensor:
        return whole(mask, index, global_samples=len(index.unique()))

    with replaced(step, "token_weights", local):
        yield


@contextmanager
def no_sum_over_vocabulary(worker: Any) -> Iterator[None]:
    """Each rank keeps its own part of the hidden states' gradient (no sequence parallelism)."""
    from openclaw_core.trainer import model

    with replaced(model, "copy_to_tensor_model_parallel_region", lambda x: x):
        yield


@contextmanager
def unmarked_norms(worker: Any) -> Iterator[None]:
    """Norms see a part of the positions, but their gradients are not summed."""
    for parameter in worker.gpt.parameters():
        if getattr(parameter, "sequence_parallel", False):
            parameter.sequence_parallel = False
    yield


@contextmanager
def unmarked_shards(worker: Any) -> Iterator[None]:
    """Megatron does not know which parameters are shards: the gradient norm counts one shard of each."""
    for parameter in worker.gpt.parameters():
        if hasattr(parameter, "tensor_model_parallel"):
            parameter.tensor_model_parallel = False
    yield


@contextmanager
def unsummed_positions(worker: Any) -> Iterator[None]:
    """The gradient of the gathered hidden states is split over the ranks, but not summed (sequence parallelism)."""
    from openclaw_core.trainer import model

    gather = model.gather_from_sequence_parallel_region
    with replaced(model, "gather_from_sequence_parallel_region", lambda x: gather(x, tensor_parallel_output_grad=False)):
        yield


@contextmanager
def no_reduction(worker: Any) -> Iterator[None]:
    """Data-parallel ranks keep their own gradients."""
    with replaced(worker.model, "finish_grad_sync", lambda *_args, **_kwargs: None):
        yield


@contextmanager
def teacher_is_student(worker: Any) -> Iterator[None]:
    """Scores that are those of another policy: the start model stands in for the old one."""
    scorer = worker.step.scorer
    with replaced(scorer, "_policy", scorer._start):
        yield


SABOTAGE: dict[str | None, Callable[[Any], Any]] = {
    None: intact,
    **{
        function.__name__: function
        for function in (
            mean_of_micro_batch,
            no_sum_over_vocabulary,
            unmarked_norms,
            unmarked_shards,
            unsummed_positions,
            no_reduction,
            teacher_is_student,
        )
    },
}


if __name__ == "__main__":
    main(*sys.argv[1:])
