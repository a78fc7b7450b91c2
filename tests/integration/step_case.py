"""Samples and models for the tests of the trainer's step, and its ranks as child processes."""

from __future__ import annotations

import pickle
import random
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import torch

from openclaw_core.losses import add_sums, finish_metrics
from openclaw_core.trainer.token_table import SampleTokens
from openclaw_core.types import Sample
from openclaw_core.weights.convert import convert_checkpoint
from openclaw_core.weights.names import to_hf
from openclaw_core.weights.spec import ModelSpec
from tests.children import run_ranks
from tests.models import VOCAB_SIZE

TEMPERATURE = 0.7
LOSS = {"loss.kl_coef": 0.5, "loss.head_chunk": 4, "loss.max_logprob_diff": 5.0}

_SCRATCH = tempfile.TemporaryDirectory(prefix="step-models-")

Probe = dict[str, tuple[float, ...]]


class SampleMaker:
    """Random samples from one seed."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)

    def __call__(self, name: str, prompt: int, response: int, hints: int, reward: float, **changes: Any) -> Sample:
        x = self._ids(prompt)
        values: dict[str, Any] = {
            "sample_id": name,
            "session_id": "s",
            "prompt_ids": x,
            "response_ids": self._ids(response),
            "rollout_logprobs": tuple(-6.0 - self._rng.random() for _ in range(response)),
            "loss_mask": (1,) * response,
            "reward": reward,
            "teacher_prompt_ids": tuple(x[:4] + self._ids(3 + c) + x[4:] for c in range(hints)),
            "hints": ("hint",) * hints,
            "temperature": TEMPERATURE,
            "shaped": False,
            "weight_version": 0,
            "truncated": False,
        }
        return Sample(**{**values, **changes})

    def _ids(self, n: int) -> tuple[int, ...]:
        return tuple(self._rng.randrange(3, VOCAB_SIZE) for _ in range(n))


@dataclass(frozen=True)
class Models:
    """The policy and the run's start model: Hugging Face directories, and their fp32 conversions."""

    hf: Path
    start: Path
    policy_checkpoint: Path
    start_checkpoint: Path

    @classmethod
    @cache
    def make(cls, make: Callable[..., Path], *, tied: bool) -> Models:
        """Two random models of one shape, converted once a session."""
        scratch = Path(_SCRATCH.name) / f"{make.__name__}-{tied}"
        hf = make(scratch / "hf", seed=1, tied=tied)
        start = make(scratch / "start", seed=2, tied=tied)
        checkpoints = scratch / "policy-torch_dist", scratch / "start-torch_dist"
        for source, checkpoint in zip((hf, start), checkpoints, strict=True):
            convert_checkpoint(source, checkpoint, "fp32", print)
        return cls(hf, start, *checkpoints)


@dataclass(frozen=True)
class StepResult:
    """What all ranks together say of one case."""

    loss: float
    metrics: dict[str, float | None]
    parity: float | None
    masked: dict[str, str]
    gradients: dict[str, torch.Tensor]
    """Under Hugging Face names."""
    grad_norm: float
    """Before clipping, as the optimiser takes it."""
    micro_batches: list[int]
    """By data-parallel rank."""
    tables: list[list[SampleTokens]]
    """By rank: what it hands over of the loss's view of tokens."""

    @property
    def table(self) -> dict[str, SampleTokens]:
        """All of them, by sample."""
        return {sample.sample_id: sample for rank in self.tables for sample in rank}


@dataclass(frozen=True)
class Job:
    """Cases of one model and batch."""

    models: Models
    samples: Sequence[Sample]
    cases: Sequence[dict[str, Any]]
    probe: Probe = field(default_factory=dict)


def run_jobs(jobs: Sequence[Job], scratch: Path, *, tensor_parallel: int = 1, data_parallel: int = 1) -> list[list[StepResult]]:
    """Loss and gradients of each job's cases, on tensor_parallel x data_parallel ranks that are started once."""
    layout = {"train.tensor_parallel": tensor_parallel, "train.data_parallel": data_parallel}
    request = [
        {
            "hf": str(job.models.hf),
            "policy": str(job.models.policy_checkpoint),
            "start": str(job.models.start_checkpoint),
            "samples": list(job.samples),
            "probe": job.probe,
            "cases": [{**case, "overrides": {**LOSS, **layout, **case.get("overrides", {})}} for case in job.cases],
        }
        for job in jobs
    ]
    world, out = tensor_parallel * data_parallel, scratch / "out"
    (scratch / "request").write_bytes(pickle.dumps(request))
    run_ranks("tests.integration.step_child", [scratch / "request", out], world)
    ranks = [pickle.loads(Path(f"{out}.{rank}").read_bytes()) for rank in range(world)]
    specs = [ModelSpec.from_hf(job.models.hf) for job in jobs]
    return [
        [_whole([rank[j][c] for rank in ranks], tensor_parallel, specs[j]) for c in range(len(job.cases))]
        for j, job in enumerate(jobs)
    ]


def _whole(ranks: list[dict[str, Any]], tensor_parallel: int, spec: ModelSpec) -> StepResult:
    copies = ranks[::tensor_parallel]
    sums = add_sums(rank["sums"] for rank in copies)
    return StepResult(
        loss=sums["loss"],
        metrics=finish_metrics(sums, single_step=True),
        parity=sums["parity"] / sums["parity_tokens"] if sums["parity_tokens"] else None,
        masked={name: reason for rank in copies for name, reason in rank["masked"].items()},
        gradients=dict(to_hf([rank["gradients"] for rank in ranks[:tensor_parallel]], spec)),
        grad_norm=ranks[0]["grad_norm"],
        micro_batches=[rank["micro_batches"] for rank in copies],
        tables=[rank["table"] for rank in ranks],
    )
