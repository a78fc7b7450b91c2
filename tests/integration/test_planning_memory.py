"""The plan's bytes against the real thing: tensors of megatron's objects, and the memory that a process took."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from itertools import product
from typing import Any

import pytest

from openclaw_core.config import load_config
from openclaw_core.planning.activations import Pass
from openclaw_core.planning.architecture import KNOWN
from openclaw_core.planning.head import Head
from openclaw_core.planning.placement import place
from openclaw_core.planning.ranks import trainer_rank
from openclaw_core.planning.weights import DTYPE_BYTES, gradient_bytes, optimizer_bytes, trained_parameter_bytes
from openclaw_core.weights.spec import ModelSpec
from tests.children import run_ranks

SMOL = ModelSpec.from_hf(KNOWN / "SmolLM2-135M-Instruct.json")
"""134.5 million parameters."""
# Sizes that leave padding everywhere: 1000 rows of vocabulary, head dimensions and widths that are no multiples of 64.
TIED = replace(SMOL, layers=2, hidden=72, heads=4, kv_heads=2, head_dim=20, ffn=200, vocab_size=1000, max_positions=512)
UNTIED = replace(TIED, family="qwen3", tied=False)
DTYPES = ("bf16", "fp32")
MODULE = "tests.integration.planning_child"


@pytest.mark.parametrize(("tensor_parallel", "data_parallel"), [(1, 1), (2, 1), (1, 2)])
def test_static_bytes_are_those_of_the_real_tensors(tensor_parallel: int, data_parallel: int) -> None:
    specs = (TIED, UNTIED)
    world_size = tensor_parallel * data_parallel
    outputs = run_ranks(MODULE, ["held", _json(*specs), tensor_parallel], world_size)
    ranks = [json.loads(output) for output in outputs]
    for i, (spec, dtype, distributed) in enumerate(product(specs, DTYPES, (False, True))):
        split = (tensor_parallel, data_parallel)
        planned = {
            "parameters": trained_parameter_bytes(spec, dtype, *split, distributed=distributed),
            "gradients": gradient_bytes(spec, *split, distributed=distributed),
            "optimizer": optimizer_bytes(spec, dtype, *split, distributed=distributed),
        }
        for name, size in planned.items():
            largest = max(rank[i][name] for rank in ranks)
            assert size == pytest.approx(largest, rel=0.01), (name, spec.tied, dtype, distributed)


@pytest.mark.parametrize("tensor_parallel", [1, 2])
def test_what_is_kept_is_what_autograd_saves(tensor_parallel: int) -> None:
    sequence_parallel = tensor_parallel > 1
    specs = [replace(spec, layers=3) for spec in (TIED, UNTIED, replace(UNTIED, kv_heads=4))]
    rows = json.loads(run_ranks(MODULE, ["kept", _json(*specs), tensor_parallel, 2, 96], tensor_parallel)[0])
    for row, (spec, dtype, recompute) in zip(rows, product(specs, DTYPES, (False, True)), strict=True):
        layers = Pass(spec, dtype, 192, 96, tensor_parallel, sequence_parallel, recompute=recompute)
        # There all the time, but no part of the graph: a buffer of megatron's, and what the head is given.
        planned = layers.kept() - layers._scores_buffer - layers.hidden
        ids_and_mask = 8 * 192 + 96 * 96
        assert planned + ids_and_mask == pytest.approx(row["kept"], rel=0.01), (spec.family, spec.kv_heads, dtype, recompute)


@pytest.mark.parametrize(
    ("dtype", "recompute", "sequences", "length", "response"), [("bf16", "none", 2, 512, 128), ("fp32", "full", 4, 256, 64)]
)
def test_the_peak_of_a_pass_is_the_one_that_the_process_takes(
    dtype: str, recompute: str, sequences: int, length: int, response: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Blocks of their own for all tensors that count: else VmHWM has the holes of malloc's heap too (ranks.MALLOC_SHARE).
    monkeypatch.setenv("MALLOC_MMAP_THRESHOLD_", "65536")
    settings: dict[str, Any] = {
        "model.dtype": dtype,
        "model.context_length": length,
        "train.recompute": recompute,
        "train.max_tokens_per_rank": sequences * length,
        "rollout.batch_size": sequences,
        "rollout.max_response_tokens": response,
        "scorer.placement": "separate",  # no teacher's passes
    }
    config = load_config("local-cpu", settings)
    phases = trainer_rank(config, SMOL, place(config, SMOL).trainer).phases
    planned = max(size for name, size in phases.items() if name != "optimiser's step")
    measured = json.loads(run_ranks(MODULE, ["peak", _json(SMOL), dtype, recompute, sequences, length, response])[0])
    assert planned == pytest.approx(measured["peak"], rel=0.25)


def test_the_peak_of_the_head_is_the_one_that_the_process_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MALLOC_MMAP_THRESHOLD_", "65536")
    rows, spec = 768, replace(SMOL, hidden=768, vocab_size=151_936)  # a matrix of 117 million
    head = Head(spec, "bf16", rows=rows, chunk=rows, topk=4)
    measured = json.loads(run_ranks(MODULE, ["head", _json(spec), "bf16", rows])[0])
    planned = max(head.forward(), head.backward()) - rows * spec.hidden * DTYPE_BYTES["bf16"]  # hidden states: there before
    assert planned == pytest.approx(measured["peak"], rel=0.25)


def _json(*specs: ModelSpec) -> str:
    return json.dumps([asdict(spec) for spec in specs])
