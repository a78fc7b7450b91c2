"""What a trainer hands out when it publishes: its weights under HF names, for every kind of receiver.

* Receivers on the trainer's host read ``reference``: shared memory, written once.
* Engines elsewhere receive ``buckets``, one broadcast a tensor, over a process group that they form with the trainer's first
  rank. One group an engine, so that engines come and go without each other; it is kept from publish to publish.
* Others elsewhere (a scorer) get ``elsewhere()``: a copy in Ray's object store, made when it is asked for.

The next version is written over this one where nobody is reading it then; a receiver that comes later is told to take that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ray.exceptions import RayError, RayTaskError

from openclaw_core.weights.errors import PublishError

if TYPE_CHECKING:  # engines that receive by a broadcast run without torch
    from openclaw_core.weights.shared import Entry

_MARGIN_S = 10.0
"""The rank's own deadline comes first: its error says more."""


@dataclass(frozen=True, slots=True)
class Bucket:
    """Tensors that are sent together, in this order; ``dtypes`` as torch names them, without the prefix ("bfloat16")."""

    names: tuple[str, ...]
    dtypes: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class PublishedWeights:
    """One version of the policy's weights, until the next one is made."""

    checksum: str
    reference: list[Any]
    """One ``SharedWeights`` (``arrays.reading`` opens it), for receivers on the trainer's host."""
    buckets: tuple[Bucket, ...] = ()
    """All tensors under HF names, tied ones once, for receivers in a group."""
    rank: Any = field(default=None, repr=False)
    """The trainer's first rank: the actor that sends."""
    generation: int = 0
    deadline_s: float = 600.0
    """Of joining a group and of one bucket (train.collective_s)."""

    async def open_group(self, name: str, world_size: int, backend: str) -> tuple[str, int]:
        """Begin to wait for the members of a group, of which the trainer is rank 0; returns the host and port of its store.

        ``world_size`` counts the trainer. The members meet as in SGLang's init_weights_update_group. A group that lives and is
        the same is kept: nobody has to join again. Raises PublishError.
        """
        return await self._ask("open_group", name, world_size, backend)

    async def group_joined(self, name: str) -> None:
        """Wait until every member has joined. Raises PublishError, after the deadline or where there is no such group."""
        await self._ask("group_joined", name)

    async def send(self, name: str, bucket: int) -> None:
        """Broadcast one bucket; the members must be receiving it. Raises PublishError: the group is closed then."""
        await self._ask("send_bucket", name, self.generation, bucket)

    async def close_group(self, name: str) -> None:
        """Forget a group; one that is not there is no error. Raises PublishError."""
        await self._ask("close_group", name)

    async def elsewhere(self) -> list[Any]:
        """The weights in Ray's object store, for receivers on other hosts: one reference, in a list. Raises PublishError."""
        return await self._ask("put_weights", self.generation)

    async def _ask(self, method: str, *arguments: Any) -> Any:
        if self.rank is None:
            raise PublishError(f"{method}: these weights have no trainer behind them; they can only be read on this host")
        answer = asyncio.wrap_future(getattr(self.rank, method).remote(*arguments).future())
        try:
            async with asyncio.timeout(self.deadline_s + _MARGIN_S):
                return await answer
        except TimeoutError:
            raise PublishError(
                f"{method}{arguments}: the trainer's first rank did not answer within train.collective_s={self.deadline_s:g}"
            ) from None
        except RayTaskError as error:
            if isinstance(error.cause, PublishError):
                raise PublishError(str(error.cause)) from None
            raise PublishError(f"{method}{arguments} failed in the trainer: {error}") from error
        except RayError as error:
            raise PublishError(f"{method}{arguments}: the trainer's first rank is lost: {error}") from error


def cut(entries: Sequence[Entry], limit_bytes: int) -> tuple[Bucket, ...]:
    """Tensors in order, as many to a bucket as fit into ``limit_bytes``; a larger one has a bucket of its own."""
    buckets: list[list[Entry]] = []
    room = 0
    for entry in entries:
        if entry.bytes > room or not buckets:
            buckets.append([])
            room = limit_bytes
        buckets[-1].append(entry)
        room -= entry.bytes
    return tuple(
        Bucket(
            tuple(entry.name for entry in bucket),
            tuple(str(entry.dtype).removeprefix("torch.") for entry in bucket),
            tuple(entry.shape for entry in bucket),
        )
        for bucket in buckets
    )
