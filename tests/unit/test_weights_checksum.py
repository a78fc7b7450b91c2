"""The checksum of a set of weights."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from openclaw_core.weights.checksum import checksum, checksum_directory

WEIGHTS = {"b": torch.arange(6.0).reshape(2, 3), "a": torch.ones(4, dtype=torch.bfloat16)}


def test_order_and_memory_layout_do_not_matter() -> None:
    other = {"a": WEIGHTS["a"].clone(), "b": WEIGHTS["b"].t().contiguous().t()}

    assert checksum(other.items()) == checksum(WEIGHTS.items())


@pytest.mark.parametrize(
    "change",
    [
        {"a": torch.ones(4, dtype=torch.float16)},
        {"a": torch.ones(2, 2, dtype=torch.bfloat16)},
        {"b": WEIGHTS["b"] + torch.eye(2, 3) * 1e-7},
        {"c": torch.ones(1)},
    ],
    ids=["dtype", "shape", "one value", "another tensor"],
)
def test_every_difference_shows(change: dict[str, torch.Tensor]) -> None:
    assert checksum((WEIGHTS | change).items()) != checksum(WEIGHTS.items())


def test_a_renamed_tensor_shows() -> None:
    assert checksum([("x", WEIGHTS["a"])]) != checksum([("a", WEIGHTS["a"])])


def test_a_directory_has_the_checksum_of_its_tensors(tiny_llama_dir: Path) -> None:
    assert checksum_directory(tiny_llama_dir) == checksum(load_file(tiny_llama_dir / "model.safetensors").items())
