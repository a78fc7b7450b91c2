"""The trainer's side of a publish, in the test's own process: the project's sender with a dictionary of tensors behind it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from openclaw_core.trainer.sender import Sender
from openclaw_core.weights.checksum import checksum
from openclaw_core.weights.publish import Bucket, cut
from openclaw_core.weights.shared import Entry

_BUCKET_BYTES = 100_000
"""Several buckets even for a tiny model."""


@dataclass
class SentWeights:
    """What ``PublishedWeights`` is without Ray. Subclasses in tests break one of its methods."""

    sender: Sender
    tensors: Mapping[str, Tensor]

    @property
    def checksum(self) -> str:
        return checksum(self.tensors.items())

    @property
    def buckets(self) -> tuple[Bucket, ...]:
        entries = [Entry(name, tensor.dtype, tuple(tensor.shape), 0) for name, tensor in self.tensors.items()]
        return cut(entries, _BUCKET_BYTES)

    async def open_group(self, name: str, world_size: int, backend: str) -> tuple[str, int]:
        return await asyncio.to_thread(self.sender.open, name, world_size, backend)

    async def group_joined(self, name: str) -> None:
        await asyncio.to_thread(self.sender.joined, name)

    async def send(self, name: str, bucket: int) -> None:
        tensors = [self.tensors[tensor].contiguous() for tensor in self.buckets[bucket].names]
        await asyncio.to_thread(self.sender.send, name, tensors, f"bucket {bucket}")

    async def close_group(self, name: str) -> None:
        await asyncio.to_thread(self.sender.close, name)
