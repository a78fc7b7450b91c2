"""The files of a checkpoint, which stay on the host that wrote them: checked there, and read from there by other hosts.

Free of torch and megatron. A host's copy of a checkpoint's directory holds the parts written there, and copies of others
that a restart needed.
"""

from __future__ import annotations

import fcntl
import os
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from openclaw_core.errors import OpenClawError
from openclaw_core.weights.files import publish, remove, sha256

if TYPE_CHECKING:
    from openclaw_core.config.schema import RunConfig

CHUNK = 64 * 2**20
"""Bytes that one read of another host's part brings."""

Fetch = Callable[[str, str, int, int], bytes]
"""(host, path below its root, offset, size) → up to ``size`` bytes of a part that the host holds."""


def host_name(config: RunConfig) -> str:
    """How checkpoints name this host: without containers there is one, whatever it is called today."""
    return socket.gethostname() if config.cluster.containers else "localhost"


class CheckpointError(OpenClawError):
    """A checkpoint that cannot be written or does not fit; the message names its path and what does not fit."""


@dataclass(frozen=True, slots=True)
class Part:
    """One file of a checkpoint."""

    host: str
    """Where it was written and stays."""
    bytes: int
    sha256: str


def record(file: Path, host: str) -> Part:
    """What the manifest says about a file that was just written on this host."""
    return Part(host, file.stat().st_size, sha256(file))


def verify(directory: Path, parts: Mapping[str, Part], host: str) -> list[str]:
    """What is wrong with the parts that ``host``, this one, holds of the checkpoint in ``directory``; empty: nothing.

    A damaged copy of another host's part is no finding: it is removed, to be pulled again when it is needed.
    """
    findings: list[str] = []
    for name, part in sorted(parts.items()):
        problem = _problem(directory / name, part, checksum=True)
        if problem is None:
            continue
        if part.host == host:
            findings.append(f"{directory / name} on {host} {problem}")
        else:
            remove(directory / name)
    return findings


def ensure(directory: Path, names: Iterable[str], parts: Mapping[str, Part], fetch: Fetch | None) -> list[str]:
    """Have these parts in ``directory`` on this host, pulling those that are not there; returns the names pulled.

    Ranks of one host may ask for the same part at once: one pulls it, the others wait. What was pulled gets its name only
    when its checksum is right.

    Raises:
        CheckpointError: a part is neither here nor to be had, or what its holder sent is not what was written.
    """
    pulled: list[str] = []
    for name in sorted(names):
        if name not in parts:
            raise CheckpointError(f"{directory} has no part {name} in its manifest")
        part = parts[name]
        if _problem(directory / name, part) is None:
            continue
        with _lock(directory / f".{name}.lock"):
            problem = _problem(directory / name, part)
            if problem is None:
                continue
            if fetch is None:
                raise CheckpointError(f"{directory / name} {problem}; it was written on {part.host}")
            _pull(directory / name, part, fetch)
            pulled.append(name)
    return pulled


class PartStore:
    """Gives other hosts the parts that one host holds. A plain class; as a Ray actor it is pinned to its host.

    ``root`` is the directory of the run's checkpoints on this host. Nothing outside it is ever read or removed.
    """

    def __init__(self, root: str) -> None:
        self._root = Path(root).resolve()

    def read(self, path: str, offset: int, size: int) -> bytes:
        """Up to ``size`` bytes of a file below the root, from ``offset``; fewer at its end.

        Raises:
            CheckpointError: the path leaves the root, or is no file.
        """
        file = self._below(path)
        try:
            with file.open("rb") as stream:
                stream.seek(offset)
                return stream.read(size)
        except OSError as error:
            raise CheckpointError(f"{file} cannot be read: {error}") from error

    def verify(self, directory: str, parts: Mapping[str, Part], host: str) -> list[str]:
        """See ``verify``; ``directory`` is the checkpoint's name below the root."""
        return verify(self._below(directory), parts, host)

    def retain(self, names: Iterable[str]) -> list[str]:
        """Remove this host's parts of all checkpoints but those named; see ``retention.retain``."""
        from openclaw_core.trainer.retention import retain

        return retain(self._root, names)

    def _below(self, path: str) -> Path:
        full = (self._root / path).resolve()
        if full == self._root or not full.is_relative_to(self._root):
            raise CheckpointError(f"path={path!r} is not below {self._root}; give a path relative to it")
        return full


def fetch_from(stores: Mapping[str, Any], deadline_s: float) -> Fetch:
    """Reads parts from ``stores``, by host: handles of PartStore as Ray actors. ``deadline_s`` bounds one read."""

    def fetch(host: str, path: str, offset: int, size: int) -> bytes:
        if host not in stores:
            raise CheckpointError(f"{path} was written on {host}, which is not among the hosts {sorted(stores)}")
        return _ask(stores[host].read, host, deadline_s, path, offset, size)

    return fetch


def verify_on(stores: Mapping[str, Any], deadline_s: float) -> Callable[[str, Mapping[str, Part]], list[str]]:
    """Checks a checkpoint, by its directory's name, on all its hosts at once; a host that does not answer is a finding.

    ``stores``: handles of PartStore as Ray actors, by host. ``deadline_s`` bounds the reading of one host's parts.
    """

    def check(directory: str, parts: Mapping[str, Part]) -> list[str]:
        findings: list[str] = []
        holders = sorted({part.host for part in parts.values()})
        # Hosts without parts of their own may have copies that they pulled: damaged ones are removed there.
        asked = {host: store.verify.remote(directory, dict(parts), host) for host, store in stores.items()}
        for host in holders:
            if host not in asked:
                findings.append(
                    f"{host}, which holds {_held(parts, host)} of its parts, is not among the hosts {sorted(stores)}"
                )
                continue
            try:
                findings += _get(asked[host], host, "verify", deadline_s)
            except CheckpointError as error:
                findings.append(f"{_held(parts, host)} of its parts cannot be checked: {error}")
        return findings

    return check


def _pull(destination: Path, part: Part, fetch: Fetch) -> None:
    unfinished = destination.with_name(f".{destination.name}.pulled")
    source = f"{destination.parent.name}/{destination.name}"
    try:
        with unfinished.open("wb") as stream:
            while stream.tell() < part.bytes:
                piece = fetch(part.host, source, stream.tell(), min(CHUNK, part.bytes - stream.tell()))
                if not piece:
                    break  # shorter than the manifest says: found below
                stream.write(piece)
        problem = _problem(unfinished, part, checksum=True)
        if problem is not None:
            raise CheckpointError(f"{source} as sent by {part.host} {problem}")
        publish(unfinished, destination)
    finally:
        remove(unfinished)


def _problem(file: Path, part: Part, *, checksum: bool = False) -> str | None:
    """What differs from the manifest; the content is read only with ``checksum``."""
    try:
        size = file.stat().st_size
        if size != part.bytes:
            return f"has {size} bytes, {part.bytes} were written"
        return "differs from its checksum" if checksum and sha256(file) != part.sha256 else None
    except FileNotFoundError:
        return f"is missing, {part.bytes} bytes were written"
    except OSError as error:
        return f"cannot be read: {error}"


def _held(parts: Mapping[str, Part], host: str) -> int:
    return sum(part.host == host for part in parts.values())


def _ask(method: Any, host: str, deadline_s: float, *arguments: Any) -> Any:
    return _get(method.remote(*arguments), host, "read", deadline_s)


def _get(reference: Any, host: str, what: str, deadline_s: float) -> Any:
    import ray
    from ray.exceptions import GetTimeoutError, RayError, RayTaskError

    try:
        return ray.get(reference, timeout=deadline_s)
    except GetTimeoutError:
        raise CheckpointError(f"{host} did not answer {what} of checkpoint parts within {deadline_s:.0f} s") from None
    except RayTaskError as error:
        raise CheckpointError(f"{host}: {error.cause}") from error
    except RayError as error:
        raise CheckpointError(f"{host} failed to {what} checkpoint parts: {error}") from error


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    """One process of this host at a time; the kernel releases it when its holder dies."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_CREAT | os.O_RDWR, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
