"""One process at a time for a directory that is being made."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from openclaw_core.weights.child import Log


@contextlib.contextmanager
def locked(destination: Path, log: Log) -> Iterator[None]:
    """Hold ``destination`` for the block; waits while another process of this machine holds it, in a container or not.

    The lock is the kernel's: it ends with its holder, however that ends.
    """
    file = destination.with_name(f".{destination.name}.lock")
    file.parent.mkdir(parents=True, exist_ok=True)
    descriptor = _acquire(file, destination, log)
    try:
        yield
    finally:
        file.unlink(missing_ok=True)  # while it is held: whoever waits for it sees that it is no longer the file
        os.close(descriptor)


def _acquire(file: Path, destination: Path, log: Log) -> int:
    said = False
    while True:
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if not said:
                log(f"{destination}: another process is at work on it; waiting until it is done")
                said = True
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        if _is(file, descriptor):
            return descriptor
        os.close(descriptor)


def _is(file: Path, descriptor: int) -> bool:
    """Whether the file that was opened still has the name: its last holder removed it."""
    try:
        return os.path.samestat(file.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False
