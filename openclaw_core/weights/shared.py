"""Weights in memory that the processes of one host share: written once by a trainer's rank, read by whoever runs beside it.

The memory is a file without a name (memfd). It counts neither against /dev/shm nor against a container's --shm-size, and it
goes when the last process that maps it goes, however that ends. Readers open it as /proc/<pid>/fd/<n>: they must be the same
user in the same PID namespace, as all processes of one Ray node are.

A reader holds a lock on the file (flock, which also goes with its process), so that what is being read is not overwritten: the
writer then takes another segment. So a reader may also compute with the weights where they lie, and copy nothing.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import secrets
import stat
import struct
import threading
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from openclaw_core.weights.checksum import raw
from openclaw_core.weights.errors import WeightsError
from openclaw_core.weights.packed import Packed

_HEADER = struct.Struct("=16sQ")
"""Who wrote the segment, and which of its versions it holds; 0 while it is being written."""
_FIRST = 4096
_ALIGNMENT = 64


@dataclass(frozen=True, slots=True)
class Entry:
    """Where one tensor lies; ``offset`` in bytes."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    offset: int

    @property
    def bytes(self) -> int:
        """Its size."""
        return torch.Size(self.shape).numel() * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class SharedWeights:
    """One version in a segment, as its readers get it. Small: it is sent in place of the weights."""

    host: str
    pid: int
    descriptor: int
    nonce: bytes
    size: int
    generation: int
    layout: Packed[tuple[Entry, ...]]

    @property
    def entries(self) -> tuple[Entry, ...]:
        """Where its tensors lie."""
        return self.layout.value

    def reachable(self) -> bool:
        """Whether this process can read it: it runs on the same host."""
        try:
            os.close(self._open())
        except WeightsError:
            return False
        return True

    @contextmanager
    def reading(self) -> Iterator[dict[str, Tensor]]:
        """Views by name, for as long as the context lasts: copy from them, never write.

        Raises:
            WeightsError: the segment is not in reach of this process, its writer has died, or it holds another version.
        """
        descriptor = self._open()
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                raise WeightsError(self._replaced("another one, half written")) from None
            _, held = _header(descriptor)
            if held != self.generation:
                raise WeightsError(self._replaced(f"{held}" if held else "another one, half written"))
            yield dict(_mapped(self, descriptor))
        finally:
            fcntl.flock(descriptor, fcntl.LOCK_UN)  # the memory's own descriptor shares the lock and stays open
            os.close(descriptor)

    @property
    def path(self) -> Path:
        """Where a process of the same host opens the segment."""
        return Path(f"/proc/{self.pid}/fd/{self.descriptor}")

    def _open(self) -> int:
        """A descriptor of this very segment."""
        try:
            # What lies there may be anything by now: a pipe would block.
            descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            raise WeightsError(self._out_of_reach(error.strerror)) from None
        if _is_segment(descriptor, self):
            return descriptor
        os.close(descriptor)
        raise WeightsError(self._out_of_reach("something else lies there"))

    def _replaced(self, by: str) -> str:
        return f"these weights were publication {self.generation} of process {self.pid}; the memory holds {by} now; take that"

    def _out_of_reach(self, reason: object) -> str:
        return (
            f"the published weights lie in the memory of process {self.pid} on {self.host}, and this process, on "
            f"{os.uname().nodename}, cannot read {self.path} ({reason}): it must run on that host, in the same container (or "
            "with --pid=host), as the same user; engines elsewhere receive weights by a broadcast group"
        )


class Segment:
    """The writer's side: memory for one set of names, dtypes and shapes, used again for every version."""

    def __init__(self, shapes: Mapping[str, tuple[int, ...]], dtype: torch.dtype) -> None:
        """Set the memory aside, all of it, now. Raises WeightsError where there is not enough."""
        entries: list[Entry] = []
        offset = _FIRST
        for name, shape in shapes.items():
            entries.append(Entry(name, dtype, tuple(shape), offset))
            offset += -(-entries[-1].bytes // _ALIGNMENT) * _ALIGNMENT
        self._nonce = secrets.token_bytes(16)
        self._descriptor = os.memfd_create("openclaw-weights", os.MFD_CLOEXEC)
        try:
            os.ftruncate(self._descriptor, offset)
            self._memory = mmap.mmap(self._descriptor, offset, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
            _huge_pages(self._memory)
            os.posix_fallocate(self._descriptor, 0, offset)
        except (OSError, ValueError) as error:
            os.close(self._descriptor)
            raise WeightsError(
                f"cannot set aside {offset / 2**20:.0f} MiB of shared memory for the published weights ({error}); it counts as "
                "memory of the trainer's process: raise the container's memory limit (--memory), or give the host more"
            ) from error
        self.entries = tuple(entries)
        self._layout = Packed.of(self.entries)
        self.tensors = views(torch.frombuffer(self._memory, dtype=torch.uint8), self.entries)
        """Views by name, to be written between ``begin`` and ``end``."""
        self.raw = {name: raw(tensor) for name, tensor in self.tensors.items()}
        """The same, as bytes: made once, since making a view takes as long as copying a small tensor."""

    def begin(self) -> bool:
        """The last version is about to be overwritten; False where a reader is at work, and nothing may be written."""
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        _HEADER.pack_into(self._memory, 0, self._nonce, 0)
        return True

    def end(self, generation: int) -> SharedWeights:
        """All tensors are written: what readers need to know. ``generation``: above 0, another one for each version."""
        _HEADER.pack_into(self._memory, 0, self._nonce, generation)
        fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        size = len(self._memory)
        return SharedWeights(os.uname().nodename, os.getpid(), self._descriptor, self._nonce, size, generation, self._layout)

    def close(self) -> None:
        """No reader can open it any more; the memory goes with the last view of it."""
        os.close(self._descriptor)


def views(flat: Tensor, entries: tuple[Entry, ...]) -> dict[str, Tensor]:
    """The tensors of a segment's bytes, by name."""
    return {
        entry.name: flat[entry.offset : entry.offset + entry.bytes].view(entry.dtype).view(entry.shape) for entry in entries
    }


_lock = threading.Lock()
_mappings: dict[bytes, dict[str, Tensor]] = {}
"""Views of the segments that this process mapped last: mapping the same one again would cost as much as reading it."""
_KEPT = 2
"""A writer whose versions are served from takes turns with so many."""


def _is_segment(descriptor: int, weights: SharedWeights) -> bool:
    found = os.fstat(descriptor)
    return stat.S_ISREG(found.st_mode) and found.st_size == weights.size and _header(descriptor)[0] == weights.nonce


def _header(descriptor: int) -> tuple[bytes, int]:
    nonce, generation = _HEADER.unpack(os.pread(descriptor, _HEADER.size, 0))
    return nonce, generation


def _mapped(weights: SharedWeights, descriptor: int) -> dict[str, Tensor]:
    with _lock:
        if weights.nonce not in _mappings:
            if len(_mappings) == _KEPT:
                del _mappings[next(iter(_mappings))]
            _mappings[weights.nonce] = views(_map(descriptor, weights.size), weights.entries)
        return _mappings[weights.nonce]


def _map(descriptor: int, size: int) -> Tensor:
    memory = mmap.mmap(descriptor, size, mmap.MAP_SHARED, mmap.PROT_READ)
    _huge_pages(memory)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given buffer is not writable", category=UserWarning)
        return torch.frombuffer(memory, dtype=torch.uint8)


def _huge_pages(memory: mmap.mmap) -> None:
    """A hint, for speed; a kernel without huge pages refuses it."""
    with contextlib.suppress(OSError):
        memory.madvise(mmap.MADV_HUGEPAGE)
