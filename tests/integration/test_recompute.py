"""Full recomputation gives the gradients of none, for less memory; and the group for objects."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.children import run_ranks
from tests.models import tiny_qwen3

pytestmark = pytest.mark.ranks


@pytest.mark.parametrize("tensor_parallel", [1, 2])
def test_recomputed_gradients_are_those_of_the_plain_backward(tmp_path: Path, tensor_parallel: int) -> None:
    """At 2 ranks with sequence parallelism."""
    directory, out = tiny_qwen3(tmp_path / "hf"), tmp_path / "out.pt"
    run_ranks("tests.integration.recompute_child", [directory, out], world_size=tensor_parallel)
    for rank in range(tensor_parallel):
        answer = torch.load(f"{out}.{rank}")
        plain, full, own_mask = (answer["runs"][name] for name in ("none", "full", "own mask"))

        assert (plain["forwards"], full["forwards"]) == (1, 2)
        assert (plain["mask"], own_mask["mask"]) == (True, False)
        assert full["saved"] < plain["saved"] / 2
        for other in (full, own_mask):
            assert other["loss"] == plain["loss"]
            assert other["gradients"].keys() == plain["gradients"].keys()
            assert any(gradient.any() for gradient in plain["gradients"].values())
            for name, gradient in plain["gradients"].items():
                assert torch.equal(other["gradients"][name], gradient), name
        expected = ["dtype=bf16 on cpu: allowed is fp32"]
        if tensor_parallel > 1:
            expected.insert(
                0, "23 positions with sequence parallelism over 2 ranks: allowed is a multiple of 2; pad on the right"
            )
        assert answer["refused"] == expected
        assert answer["ranks"] == list(range(tensor_parallel))
