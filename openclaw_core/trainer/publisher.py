"""What the first trainer rank keeps of a publish: the version that was published last, for every kind of receiver."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import structlog
import torch
from torch import Tensor

from openclaw_core.trainer.sender import Sender
from openclaw_core.weights.checksum import Checksum, raw
from openclaw_core.weights.errors import PublishError
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
    buckets: tuple[Bucket, ...]


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
        self._buckets: tuple[Bucket, ...] = ()
        self._made = self._current = self._sending = 0
        """Publications; the one that may be sent, 0 while one is being written; broadcasts at work."""
        self._lock = threading.Lock()

    def publish(self, weights: Callable[[Mapping[str, Tensor]], Iterable[tuple[str, Tensor]]]) -> Publication:
        """Take a version over, tensor by tensor: each is read, copied and digested while it is in the cache.

        ``weights`` is given the tensors to write to, by name; it may fill some itself, and yields all that there is.
        All of it is consumed whatever it holds: other ranks take part in making it.

        Raises:
            FloatingPointError: a weight is not finite: such weights are never published.
            WeightsError: there is not enough shared memory, or the weights are not those of ``shapes`` and ``dtype``.
        """
        segment = self.prepare()
        digest, broken, wrong = Checksum(), set[str](), set(segment.tensors)
        try:
            for name, tensor in weights(segment.tensors):
                own = segment.tensors.get(name)
                if own is None or own.shape != tensor.shape or own.dtype != tensor.dtype:
                    wrong.add(f"{name} {list(tensor.shape)} {tensor.dtype}")
                    continue
                wrong.discard(name)
                target = segment.raw[name]
                source = target if tensor is own else raw(tensor)
                digest.add_bytes(name, own, target, _taking(name, source, target, own.dtype, broken))
            if wrong:
                raise PublishError(f"these weights are missing or not those of the model: {', '.join(sorted(wrong)[:5])}")
            checksum = digest.result()
            if broken:
                raise FloatingPointError(
                    f"{len(broken)} weights are not finite and are not published, among them {min(broken)}"
                )
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
            if not 0 <= bucket < len(self._buckets):
                raise PublishError(f"group {group!r}: there is no bucket {bucket}, but {len(self._buckets)} from 0 on")
            what = f"bucket {bucket} of {len(self._buckets)}"
            self.sender.send(group, [tensors[name] for name in self._buckets[bucket].names], what)

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
            self._buckets = cut(self._segment.entries, self._bucket_bytes)
            return self._segment


_PATTERNS = {
    torch.bfloat16: (np.uint16, np.int16, 0x7F80, 0xFF80),
    torch.float32: (np.uint32, np.int32, 0x7F80_0000, 0xFF80_0000),
}
"""The same bits without and with a sign, and the smallest pattern of an inf or nan above and below zero."""
_LARGE = {torch.bfloat16: 0x4000_4000_4000_4000, torch.float32: 0x4000_0000_4000_0000}
"""Eight bytes with the highest bit of each exponent: no number below 2 has it."""


def _taking(name: str, source: np.ndarray, target: np.ndarray, dtype: torch.dtype, broken: set[str]) -> Callable[[slice], None]:
    """Copies a piece of ``source`` to ``target``, and adds the name to ``broken`` where it is not finite.

    numpy and not torch: torch would start threads of its own for each piece, and wait for them.
    """

    def take(piece: slice) -> None:
        taken = target[piece]
        if source is not target:
            np.copyto(taken, source[piece])
        if not _finite(taken, dtype):
            broken.add(name)

    return take


def _finite(taken: np.ndarray, dtype: torch.dtype) -> bool:
    """Whether all numbers in these bytes are finite. Nothing is written: each pass over them is half the cost of the copy.

    Nearly all weights are below 2, which one pass tells. Else, since patterns grow with a number's size, the largest one
    below zero and the largest above tell, one pass each.
    """
    if taken.nbytes % 8 == 0 and not int(np.bitwise_or.reduce(taken.view(np.uint64))) & _LARGE[dtype]:
        return True
    unsigned, signed, above, below = _PATTERNS[dtype]
    return bool(taken.view(unsigned).max() < below and taken.view(signed).max() < above)
