"""Weights between processes: in shared memory on one host; by Ray's object store, as numpy arrays, to another one.

numpy arrays lie in the object store without a copy of each reader's own; torch tensors do not.

numpy has no bfloat16, so a bf16 weight travels as the uint16 array of its bits.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

from openclaw_core.weights.shared import SharedWeights


def as_arrays(weights: Mapping[str, Tensor]) -> dict[str, np.ndarray]:
    """Views of CPU tensors, to be sent."""
    return {name: _bits(tensor.detach().contiguous()).numpy() for name, tensor in weights.items()}


@contextmanager
def reading(weights: SharedWeights | Mapping[str, Tensor | np.ndarray]) -> Iterator[dict[str, Tensor]]:
    """Views of what was received, in any of its forms, for as long as the context lasts: copy from them, never write.

    Raises WeightsError where they lie in shared memory that is not in reach, or is taken by a newer version.
    """
    if isinstance(weights, SharedWeights):
        with weights.reading() as tensors:
            yield tensors
    else:
        yield as_tensors(weights)


def as_tensors(weights: Mapping[str, Tensor | np.ndarray]) -> dict[str, Tensor]:
    """Views of tensors or ``as_arrays``. They may be read-only: copy from them, never write."""
    return {name: value if isinstance(value, Tensor) else _as_tensor(value) for name, value in weights.items()}


def _bits(tensor: Tensor) -> Tensor:
    return tensor.view(torch.uint16) if tensor.dtype is torch.bfloat16 else tensor


def _as_tensor(array: np.ndarray) -> Tensor:
    with warnings.catch_warnings():
        # Ray's buffers are read-only, which torch cannot express and warns about.
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable", category=UserWarning)
        tensor = torch.from_numpy(array)
    return tensor.view(torch.bfloat16) if tensor.dtype is torch.uint16 else tensor
