"""The checksum of a set of weights."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

from openclaw_core.weights.checksum import PIECE, Checksum, checksum, checksum_directory

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


LARGE = torch.arange(PIECE // 4 * 2 + 5, dtype=torch.int32)
"""Two pieces and a rest."""


@given(st.integers(0, LARGE.nbytes - 1), st.integers(0, 7))
def test_every_bit_of_a_tensor_of_several_pieces_counts(byte: int, bit: int) -> None:
    other = LARGE.clone()
    other.view(torch.uint8)[byte] ^= 1 << bit

    assert checksum([("w", other)]) != checksum([("w", LARGE)])


def test_pieces_that_change_places_show() -> None:
    first, second, rest = LARGE.split(PIECE // 4)

    assert checksum([("w", torch.cat([second, first, rest]))]) != checksum([("w", LARGE)])


@given(
    st.dictionaries(st.text(min_size=1, max_size=5), st.tuples(st.integers(0, 3), st.integers(0, 2**20)), max_size=5),
    st.integers(1, 4),
    st.randoms(use_true_random=False),
)
def test_threads_and_order_do_not_matter(tensors: dict[str, tuple[int, int]], threads: int, random: Random) -> None:
    named = [
        (name, torch.arange(size, dtype=torch.float32).reshape([1] * dims + [size])) for name, (dims, size) in tensors.items()
    ]
    digest = Checksum(threads)
    random.shuffle(shuffled := list(named))
    for name, tensor in shuffled:
        digest.add(name, tensor)

    assert digest.result() == checksum(named)


def test_the_checksum_of_given_weights_is_always_the_same() -> None:
    """It is written down in ledgers and printed by commands: a change of its definition must be noticed."""
    assert checksum(WEIGHTS.items()) == "9b4c8b9969467603dc2dc9297033609f0955695119720c0d39d6adcbffe6d7a8"


def test_a_name_that_comes_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="a is already part of this checksum"):
        checksum([("a", WEIGHTS["a"]), ("a", WEIGHTS["a"])])


def test_a_directory_has_the_checksum_of_its_tensors(tiny_llama_dir: Path) -> None:
    assert checksum_directory(tiny_llama_dir) == checksum(load_file(tiny_llama_dir / "model.safetensors").items())
