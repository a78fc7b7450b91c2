"""What is in a directory of a host or of this machine: every file's size, permission bits and sha256."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path, PurePath

from openclaw_core.cluster.copies.pipes import script_on
from openclaw_core.cluster.errors import ClusterError
from openclaw_core.cluster.hosts import Host, HostError
from openclaw_core.weights.files import sha256 as sha256_of

HASHING_DEADLINE_S = 4 * 3600
"""For a whole directory, whose size is not known before."""


@dataclass(frozen=True, slots=True)
class FileRecord:
    """A file as it must arrive."""

    size: int
    mode: int
    """Permission bits."""
    sha256: str


def manifest(host: Host | None, path: PurePath) -> dict[str, FileRecord]:
    """The files below a directory by their path relative to it, in order. Raises HostError, ClusterError as ``copy_tree``."""
    if host is None:
        return _manifest_here(Path(path))
    find = 'cd -- "$1" && find -L . ! -type d -printf "%y %s %m %P\\0"'
    doing = f"{path} cannot be read"
    listed = script_on(host, doing, find, str(path)).split("\0")[:-1]
    records: dict[str, tuple[int, int]] = {}
    for line in listed:
        kind, size, mode, name = line.split(" ", 3)
        _check_entry(host.name, path / name, kind == "f")
        records[name] = int(size), int(mode, 8) & 0o777
    hashing = 'cd -- "$1" && find -L . -type f -printf "%P\\0" | xargs -0r sha256sum -z --'
    hashed = script_on(host, doing, hashing, str(path), timeout_s=HASHING_DEADLINE_S).split("\0")[:-1]
    digests = {line[66:]: line[:64] for line in hashed}
    if digests.keys() != records.keys():
        raise HostError(host.name, f"{path} changed while it was read; copy it again when nobody writes to it")
    return {name: FileRecord(*records[name], digests[name]) for name in sorted(records)}


def _manifest_here(path: Path) -> dict[str, FileRecord]:
    if not path.is_dir():
        raise ClusterError(f"{path} is no directory of this machine")
    records = {}
    for folder, _, names in os.walk(path, followlinks=True):
        for file in (Path(folder) / name for name in names):
            _check_entry("this machine", file, file.is_file())
            status = file.stat()
            records[str(file.relative_to(path))] = FileRecord(status.st_size, status.st_mode & 0o777, sha256_of(file))
    return dict(sorted(records.items()))


def _check_entry(where: str, path: PurePath, is_file: bool) -> None:
    if not is_file:
        raise HostError(where, f"{path} is neither a file nor a link to one; remove it, or copy the files one by one")
    # What could not be decoded: there as a host's output is read, here as Python reads names.
    if any(character == "\N{REPLACEMENT CHARACTER}" or "\udc80" <= character <= "\udcff" for character in str(path)):
        raise HostError(where, f"{str(path)!r}: the name is not UTF-8; rename the file")
