"""Directories that are whole or absent, and records of what is in them."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def atomic_directory(destination: Path) -> Iterator[Path]:
    """A new directory to write to, which becomes ``destination`` in one rename if the block ends without an error.

    What was at ``destination`` is replaced. One process at a time may write one destination.
    """
    partial = partial_name(destination)
    remove(partial)
    partial.mkdir(parents=True)
    try:
        yield partial
        publish(partial, destination)
    except BaseException:
        remove(partial)
        raise


def partial_name(destination: Path) -> Path:
    """Where a directory is written before it gets its name."""
    return destination.with_name(f".{destination.name}.partial")


def publish(partial: Path, destination: Path) -> None:
    """Bring a file or a directory to the disk, then give it its name. What had the name is replaced."""
    for path in sorted(partial.rglob("*"), reverse=True):
        fsync(path)
    fsync(partial)
    if partial.is_dir() or destination.is_dir():
        remove(destination)  # a directory cannot be replaced in one step
    partial.replace(destination)
    fsync(destination.parent)


def remove(path: Path) -> None:
    """Remove a directory, a file or a link; nothing there is fine."""
    if path.is_symlink() or path.is_file():
        path.unlink()
    elif path.exists():
        shutil.rmtree(path)


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write a JSON object for people and programs."""
    path.write_text(json.dumps(value, indent=2, sort_keys=True) + "\n")


def read_json(path: Path) -> dict[str, Any] | None:
    """The object in a JSON file; None where there is no whole one."""
    try:
        value = json.loads(path.read_text())
    except (FileNotFoundError, NotADirectoryError, json.JSONDecodeError):
        return None
    return value if isinstance(value, dict) else None


def file_records(files: Iterable[Path]) -> dict[str, dict[str, Any]]:
    """Size in bytes and sha256 of each file, by name."""
    return {file.name: {"bytes": file.stat().st_size, "sha256": sha256(file)} for file in sorted(files)}


def sha256(path: Path) -> str:
    """Hex digest of a file's content."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def fsync(path: Path) -> None:
    """Bring a file, or a directory's list of names, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
