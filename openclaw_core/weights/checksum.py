"""One checksum for a set of weights, wherever it is: published, in a file, in an engine."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor

from openclaw_core.weights.hf_files import HFWeights


def checksum(items: Iterable[tuple[str, Tensor]]) -> str:
    """sha256 over name, dtype, shape and bytes of every tensor, in the order of names."""
    digest = hashlib.sha256()
    for name, tensor in sorted(items, key=lambda item: item[0]):
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def checksum_directory(directory: Path) -> str:
    """The checksum of the weights in a Hugging Face model directory. Raises WeightsError if they are not whole."""
    return checksum(HFWeights(directory).items())
