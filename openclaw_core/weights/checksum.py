"""One checksum for a set of weights, wherever it is: published, in a file, in an engine.

It finds what goes wrong on the way, not what somebody forges: XXH3 over pieces of each tensor, which is as fast as the memory
is read and runs on as many threads as torch would use, then sha256 over the list of tensors.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
import xxhash
from torch import Tensor

from openclaw_core.weights.hf_files import HFWeights

PIECE = 2**20
"""Bytes that are digested together: what a core's own cache holds. Part of the definition of the checksum."""
_BATCH = 16 * PIECE
"""Bytes that a thread is given at a time; small tensors go together."""
_AHEAD = 2
"""Batches that wait for each thread: whoever makes the tensors is held back, so that not all of them are kept at once."""

_Piece = tuple[list[bytes], int, np.ndarray, slice, Callable[[slice], None] | None]
"""Where its digest goes; the tensor's bytes, and which of them; what comes first."""


class Checksum:
    """A checksum that is computed while its tensors are still being made.

    Tensors may come in any order; the values of one must stay as they are until ``result``.
    """

    def __init__(self, threads: int | None = None) -> None:
        """``threads``: torch's number where None."""
        self._threads = threads or torch.get_num_threads()
        self._pool = ThreadPoolExecutor(self._threads, "checksum")
        self._tensors: dict[str, tuple[str, list[bytes]]] = {}
        self._batch: list[_Piece] = []
        self._batched = 0
        self._running: deque[Future[None]] = deque()

    def add(self, name: str, tensor: Tensor) -> None:
        """Take one tensor in; each name once."""
        self.add_bytes(name, tensor, raw(tensor))

    def add_bytes(self, name: str, tensor: Tensor, data: np.ndarray, first: Callable[[slice], None] | None = None) -> None:
        """As ``add``, for a tensor whose bytes (``raw``) are at hand.

        ``first`` is called for each piece right before it is digested, in the same thread, with where it lies in the tensor's
        bytes: to bring the piece there.
        """
        if name in self._tensors:
            raise ValueError(f"{name} is already part of this checksum; each name counts once")
        digests = list[bytes]()
        for start in range(0, data.size, PIECE):
            digests.append(b"")
            self._batch.append((digests, len(digests) - 1, data, slice(start, start + PIECE), first))
            self._batched += min(PIECE, data.size - start)
            if self._batched >= _BATCH:
                self._submit()
        self._tensors[name] = f"{name} {tensor.dtype} {list(tensor.shape)}", digests

    def result(self) -> str:
        """64 hexadecimal digits over name, dtype, shape and every byte of every tensor, in the order of names."""
        self._submit()
        for batch in self._running:
            batch.result()
        self.close()
        whole = hashlib.sha256()
        for name in sorted(self._tensors):
            head, digests = self._tensors[name]
            whole.update(f"{head} {b''.join(digests).hex()}\n".encode())
        return whole.hexdigest()

    def close(self) -> None:
        """End the threads, where there will be no result."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _submit(self) -> None:
        if len(self._running) >= _AHEAD * self._threads:
            self._running.popleft().result()
        self._running.append(self._pool.submit(_digest, self._batch))
        self._batch, self._batched = [], 0


def _digest(batch: list[_Piece]) -> None:
    for digests, index, data, where, first in batch:
        if first is not None:
            first(where)
        digests[index] = xxhash.xxh3_128_digest(data[where].data)


def raw(tensor: Tensor) -> np.ndarray:
    """A tensor's bytes, in the order of its elements; its own memory where it is contiguous and on the CPU."""
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()


def checksum(items: Iterable[tuple[str, Tensor]]) -> str:
    """The checksum of (name, tensor) pairs, in any order and memory layout, on any device."""
    digest = Checksum()
    try:
        for name, tensor in items:
            digest.add(name, tensor)
        return digest.result()
    finally:
        digest.close()


def checksum_directory(directory: Path) -> str:
    """The checksum of the weights in a Hugging Face model directory. Raises WeightsError if they are not whole."""
    return checksum(HFWeights(directory).items())
