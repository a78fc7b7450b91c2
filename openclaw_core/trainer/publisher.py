"""What the first trainer rank keeps of a publish: the version that was published last, for every kind of receiver."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import numpy as np
import structlog
import torch
from torch import Tensor

from openclaw_core.trainer.sender import Sender
from openclaw_core.weights.checksum import Checksum
from openclaw_core.weights.errors import PublishError
from openclaw_core.weights.packed import Packed
from openclaw_core.weights.publish import Bucket, cut
from openclaw_core.weights.shared import Segment, SharedWeights

log = structlog.get_logger(__name__)

_SEGMENTS = 2
"""The version that is served and the one that is being made. More are needed while an engine does not let go of an old one."""


@dataclass(frozen=True, slots=True)
class Publication:
    """One version, described."""

    checksum: str
    reference: SharedWeights
    buckets: Packed[tuple[Bucket, ...]]


class Publisher:
    """Writes each version over the last, into memory that receivers on this host share and that ``sender`` sends from.

    While that is read or sent from, the next version gets other memory: engines on this host serve from it.

    ``shapes``: of all weights under HF names, in the order in which they are sent.
    """

    def __init__(self, shapes: Mapping[str, tuple[int, ...]], dtype: torch.dtype, bucket_bytes: int, sender: Sender) -> None:
        self.sender = sender
        self._shapes, self._dtype, self._bucket_bytes = shapes, dtype, bucket_bytes
        self._segment: Segment | None = None
        """Of the last publication."""
        self._segments: list[Segment] = []
        self._buckets = Packed[tuple[Bucket, ...]].of(())
        self._made = self._current = self._sending = 0
        """Publications; the one that may be sent, 0 while one is being written; broadcasts at work."""
        self._lock = threading.Lock()

    def publish(self, weights: Iterable[tuple[str, Tensor]]) -> Publication:
        """Take a version over, tensor by tensor: each is read, copied and digested while it is in the cache.

        A tensor may have one more leading dimension, as ``names.whole(grouped=True)`` gives it. All of ``weights`` is consumed
        whatever it holds: other ranks take part in making it.

        Raises WeightsError: there is not enough shared memory, or the weights are not those of ``shapes`` and ``dtype``.
        """
        segment = self.prepare()
        digest, wrong = Checksum(), set(segment.tensors)
        try:
            for name, tensor in weights:
                own = segment.tensors.get(name)
                if own is None or not _alike(own, tensor):
                    wrong.add(f"{name} {list(tensor.shape)} {tensor.dtype}")
                    continue
                wrong.discard(name)
                target = segment.raw[name]
                digest.add_bytes(name, own, target, partial(_take, _rows(tensor), target))
            if wrong:
                raise PublishError(f"these weights are missing or not those of the model: {', '.join(sorted(wrong)[:5])}")
            checksum = digest.result()
        finally:
            digest.close()
        with self._lock:
            self._made += 1
            self._current = self._made
        reference = segment.end(self._made)
        return Publication(checksum, reference, self._buckets)

    def send(self, group: str, publication: int, bucket: int) -> None:
        """Broadcast a bucket of the publication. Raises PublishError."""
        with self.sending(publication) as tensors:
            buckets = self._buckets.value
            if not 0 <= bucket < len(buckets):
                raise PublishError(f"group {group!r}: there is no bucket {bucket}, but {len(buckets)} from 0 on")
            what = f"bucket {bucket} of {len(buckets)}"
            self.sender.send(group, [tensors[name] for name in buckets[bucket].names], what)

    @contextmanager
    def sending(self, publication: int) -> Iterator[dict[str, Tensor]]:
        """The weights of a publication, which stay as they are meanwhile. Raises PublishError where it is not the last one."""
        with self._lock:
            if self._segment is None or publication != self._current:
                raise PublishError(
                    f"publication {publication} is not there any more: the trainer has {self._current or 'one half written'}; "
                    "take the newest"
                )
            tensors = self._segment.tensors
            self._sending += 1
        try:
            yield tensors
        finally:
            with self._lock:
                self._sending -= 1

    def prepare(self) -> Segment:
        """Memory to write the next version to, which nobody reads."""
        with self._lock:
            self._current = 0
            for segment in self._segments:
                if not (segment is self._segment and self._sending) and segment.begin():
                    self._segment = segment
                    return segment
            if len(self._segments) == _SEGMENTS:
                log.warning("publish_memory_in_use", segments=_SEGMENTS, last=self._made)
                self._segments.pop(0).close()
            self._segment = Segment(self._shapes, self._dtype)
            self._segment.begin()
            self._segments.append(self._segment)
            self._buckets = Packed.of(cut(self._segment.entries, self._bucket_bytes))
            return self._segment


def _alike(own: Tensor, tensor: Tensor) -> bool:
    return own.dtype == tensor.dtype and own.shape in (tensor.shape, (tensor.shape[:2].numel(), *tensor.shape[2:]))


def _rows(tensor: Tensor) -> np.ndarray:
    """A tensor's bytes as [n, bytes of a run]: runs that lie apart in memory; one where it is contiguous."""
    host = tensor.detach().cpu()
    if host.is_contiguous():
        return host.reshape(1, -1).view(torch.uint8).numpy()
    return host.flatten(1).view(torch.uint8).numpy()


def _take(source: np.ndarray, target: np.ndarray, piece: slice) -> None:
    """Copy the bytes ``piece`` of all runs of ``source``, one after the other, to those of ``target``.

    numpy and not torch: torch would start threads of its own for each piece, and wait for them.
    """
    run = source.shape[1]
    at, stop = piece.start, min(piece.stop, target.size)
    while at < stop:
        row, offset = divmod(at, run)
        size = min(run - offset, stop - at)
        np.copyto(target[at : at + size], source[row, offset : offset + size])
        at += size
