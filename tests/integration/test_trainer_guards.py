"""A gradient that is not finite on one rank: no rank updates, the samples are named, and training goes on."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

from openclaw_core.trainer.packing import micro_batches
from tests.children import run_ranks
from tests.integration.step_case import Models, SampleMaker
from tests.models import tiny_llama

pytestmark = pytest.mark.ranks

SAMPLE = SampleMaker(seed=2)
SAMPLES = [SAMPLE(f"s{i}", 10, 6, hints=i % 3, reward=float(-1 + i % 3)) for i in range(6)]


@pytest.mark.parametrize(("tensor_parallel", "data_parallel", "bad_rank", "distributed"), [(1, 2, 1, True), (2, 1, 1, False)])
def test_all_ranks_skip_and_go_on(
    tmp_path: Path, tensor_parallel: int, data_parallel: int, bad_rank: int, distributed: bool
) -> None:
    layout = {
        "train.tensor_parallel": tensor_parallel,
        "train.data_parallel": data_parallel,
        "train.distributed_optimizer": distributed,
        "loss.max_logprob_diff": 50.0,
        "optimizer.lr": 1e-3,
        "model.dtype": "fp32",
    }
    data_rank = bad_rank // tensor_parallel
    (batch, *_) = micro_batches(SAMPLES, 60, data_parallel)[data_rank]
    models = Models.make(tiny_llama, tied=True)
    request: dict[str, Any] = {
        "hf": str(models.hf),
        "start": str(models.start_checkpoint),
        "overrides": layout,
        "samples": SAMPLES,
        "sample": batch[0].sample_id,
        "rank": bad_rank,
    }
    (tmp_path / "request").write_bytes(pickle.dumps(request))
    world = tensor_parallel * data_parallel
    run_ranks("tests.integration.guard_child", [tmp_path / "request", tmp_path / "out"], world)
    ranks = [pickle.loads(Path(f"{tmp_path / 'out'}.{rank}").read_bytes()) for rank in range(world)]

    for rank, (steps, refusal) in enumerate(ranks):
        assert [step["result"].skipped for step in steps] == [[False], [True], [False]]
        assert [step["changed"] for step in steps] == [True, False, True]
        assert all(step["finite"] for step in steps)
        named = {s.sample_id for s in batch} if rank == bad_rank else set()
        assert set(steps[1]["result"].bad_samples) == named
        # A rank that refuses still takes part in the gathering: else the first one would wait for it.
        broken = rank == tensor_parallel - 1
        assert refusal.startswith("1 parameters of rank" if broken else "nothing")
