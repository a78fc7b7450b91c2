"""Files from one host to another, relayed by this machine through pipes: nothing of them is written to its disk.

Hosts of a cluster need not be able to log in to each other, and this machine can log in to all. A copy that was cut off goes on
where it stopped, within a call and in the next one: what is on the target is its `.part` file, whose size says how far it got.
Each part is written at its place in the file, so a writer that an earlier connection left behind does no harm. The hosts need
GNU coreutils and findutils.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePath, PurePosixPath

import structlog

from openclaw_core.cluster.copies.manifests import FileRecord, manifest
from openclaw_core.cluster.copies.pipes import STALL_S, Lost, Pipe, ask, is_connection, is_full, pump, reading
from openclaw_core.cluster.errors import ClusterError
from openclaw_core.cluster.hosts import Host, HostError, Unreachable
from openclaw_core.weights.files import sha256 as sha256_of

log = structlog.get_logger(__name__)

Progress = Callable[[int, int], None]
"""Called with the bytes that are on the target and the bytes there are to be."""

TRIES = 8
"""In a row without getting any further; a flap of the network is over by then, or somebody must look."""
LONGEST_PAUSE_S = 20
SLOWEST_DISK = 20_000_000
"""Bytes a second: a deadline for reading a file."""
INCOMPLETE, WRONG = 91, 92
"""Exit statuses of WRITER."""
WRITER = f"""
dd of="$1" seek="$2" oflag=seek_bytes conv=notrunc,fsync bs=1048576 status=none || exit 1
# A connection that was lost looks like the end from here.
[ "$(stat -c %s "$1")" = "$3" ] || exit {INCOMPLETE}
[ "$(sha256sum < "$1")" = "$4  -" ] || {{ rm -f "$1"; exit {WRONG}; }}
chmod "$5" "$1" && mv -fT "$1" "$6"
"""
"""Writes standard input to the part $1 from byte $2 on; of $3 bytes, with the sha256 $4, it becomes $6 with the mode $5."""


@dataclass(frozen=True, slots=True)
class Copied:
    """A file that is on the target now, whole."""

    to: PurePosixPath
    size: int
    sent: int
    """Bytes given to the connection, over all tries; 0: the file was there already."""
    tries: int = 1


@dataclass(frozen=True, slots=True)
class CopiedTree:
    """A directory whose files are on the target now, whole."""

    files: int
    skipped: int
    """Of ``files``: they were there already."""
    size: int
    """Bytes of all files."""
    sent: int
    """Bytes given to the connection."""


def copy_file(
    source: Host | None,
    path: PurePath,
    target: Host,
    to: PurePath,
    *,
    sha256: str | None = None,
    progress: Progress | None = None,
) -> Copied:
    """Bring one file to a host, with its permission bits; nothing is sent where it is there already.

    Thread-safe, so several targets can be served at once. Each reads the source for itself.

    Args:
        source: The host it is on; None: this machine.
        sha256: What it must be on arrival; None: as it is at the source, which is read for it.

    Raises:
        Unreachable: a host could not be reached, or was lost and stayed so for ``TRIES`` tries.
        HostError: the target's disk is too small, the file cannot be read or written, or what arrived is not what was sent; in
            that last case the part is removed. In every other, the next call goes on from the part.
    """
    size, mode = _stat(source, path)
    record = FileRecord(size, mode, sha256 or _source_digest(source, path, size))
    return _Copy(source, path, record, target, to, progress).run()


def copy_tree(
    source: Host | None, path: PurePath, target: Host, to: PurePath, *, progress: Progress | None = None
) -> CopiedTree:
    """Bring a directory's files to a host: those that differ from what is there, by size, permission bits and sha256.

    A symbolic link arrives as the file it leads to. What only the target has stays. ``progress`` counts the bytes of the files
    that differ.

    Raises:
        HostError, Unreachable: as ``copy_file``.
        ClusterError: ``path`` is no directory, or something in it is neither a file nor a directory.
    """
    wanted, there = manifest(source, path), _target_manifest(target, to)
    differing = {name: record for name, record in wanted.items() if there.get(name) != record}
    total, done, sent = sum(record.size for record in differing.values()), 0, 0
    for name, record in differing.items():
        report = None if progress is None else _part_of(progress, done, total)
        sent += _Copy(source, path / name, record, target, to / name, report).run().sent
        done += record.size
    return CopiedTree(len(wanted), len(wanted) - len(differing), sum(record.size for record in wanted.values()), sent)


def _target_manifest(target: Host, to: PurePath) -> dict[str, FileRecord]:
    is_there = target.run("test", "-d", str(to), check=False).code == 0
    return manifest(target, to) if is_there else {}


def _part_of(progress: Progress, before: int, total: int) -> Progress:
    return lambda done, _size: progress(before + done, total)


class _Copy:
    """One file on its way."""

    def __init__(
        self,
        source: Host | None,
        path: PurePath,
        record: FileRecord,
        target: Host,
        to: PurePath,
        progress: Progress | None,
    ) -> None:
        self._source, self._path, self._record, self._target = source, path, record, target
        self._to = PurePosixPath(to)
        self._part = self._to.with_name(f"{to.name}.part")
        self._progress = progress
        self._sent = 0
        self._reached: int | None = None
        """Bytes on the target when it was last looked at; None: not yet."""

    def run(self) -> Copied:
        tries, in_vain = 1, 0
        while True:
            before = self._reached
            try:
                self._try()
                return Copied(self._to, self._record.size, self._sent, tries)
            except Lost as lost:
                # Before the first answer there is nothing to be patient for: a wrong key or address stays wrong.
                in_vain = 0 if before is not None and self._reached != before else in_vain + 1
                if self._reached is None or in_vain >= TRIES:
                    raise Unreachable(
                        lost.host, f"{lost}; {self._part} on {self._target.name} stays, and the next copy goes on from there"
                    ) from None
                pause = min(2.0 ** (in_vain - 1), LONGEST_PAUSE_S)
                log.warning("copy_interrupted", file=str(self._to), host=self._target.name, why=str(lost), pause_s=pause)
                time.sleep(pause)
                tries += 1

    def _try(self) -> None:
        there, part, free = self._look()
        size = self._record.size
        if there == size and self._is_whole(self._to):
            ask(self._target, "chmod", f"{self._record.mode:o}", str(self._to))
            self._tell(size)
            return
        if part is not None and part > size:
            ask(self._target, "rm", "-f", str(self._part))
            part = None
        self._reached = part or 0
        if free < size - self._reached:
            raise self._full(size - self._reached, free)
        self._tell(self._reached)
        self._send(self._reached)

    def _look(self) -> tuple[int | None, int | None, int]:
        """Size of the file and of its part, None where there is none, and the bytes that are free."""
        size = 'if [ -f "$f" ]; then stat -Lc %s "$f"; else echo -; fi'
        script = f'mkdir -p "$1" || exit; for f in "$2" "$3"; do {size} || exit; done; stat -fc "%a %S" "$1"'
        words = ask(self._target, "sh", "-c", script, "look", str(self._to.parent), str(self._to), str(self._part)).split()
        there, part = (None if word == "-" else int(word) for word in words[:2])
        return there, part, int(words[2]) * int(words[3])

    def _send(self, offset: int) -> None:
        """Send what is missing and give the whole its name. Raises Lost or HostError."""
        record = self._record
        words = str(self._part), str(offset), str(record.size), record.sha256, f"{record.mode:o}", str(self._to)
        writer = Pipe(self._target, self._target.line("sh", "-c", WRITER, "write", *words), stdin=True)
        with writer, reading(self._source, self._path, offset) as (stream, reader):
            left = record.size - offset
            try:
                left = pump(stream, writer.input, left, self._count(offset))
            except BrokenPipeError:
                pass  # its exit status says why
            except TimeoutError:
                raise Lost(self._target.name, f"nothing moved for {STALL_S} s") from None
            code = writer.end(60 + STALL_S + record.size / SLOWEST_DISK)
            if code == INCOMPLETE and left:
                self._source_ended_early(reader)
        self._check(writer, code)

    def _check(self, writer: Pipe, code: int) -> None:
        if code == WRONG:
            raise HostError(
                self._target.name,
                f"{self._to} did not arrive as it was sent: its sha256 is not {self._record.sha256}; the part has been "
                "removed, copy it again (the source may have changed meanwhile, or the part was of an earlier one)",
            )
        if code == INCOMPLETE:
            raise Lost(self._target.name, "not everything arrived")
        if code and not is_connection(code) and is_full(writer.said):
            _, part, free = self._look()
            raise self._full(self._record.size - (part or 0), free)
        writer.check(code)

    def _source_ended_early(self, reader: Pipe | None) -> None:
        if reader is not None:
            reader.check(reader.end(STALL_S))
        where = self._source.name if self._source else "this machine"
        raise HostError(where, f"{self._path} has become shorter while it was copied; copy it again when nobody writes to it")

    def _is_whole(self, path: PurePath) -> bool:
        return _digest(self._target, path, self._record.size) == self._record.sha256

    def _full(self, needed: int, free: int) -> HostError:
        return HostError(
            self._target.name,
            f"no room for {self._to}: {needed:,} bytes more are needed, {free:,} are free at {self._to.parent}; "
            "make room there and copy again, it goes on from the part",
        )

    def _count(self, offset: int) -> Callable[[int], None]:
        start = self._sent - offset

        def count(moved: int) -> None:
            self._sent += moved
            self._tell(self._sent - start)

        return count

    def _tell(self, done: int) -> None:
        if self._progress is not None:
            self._progress(done, self._record.size)


def _stat(source: Host | None, path: PurePath) -> tuple[int, int]:
    """Size and permission bits."""
    if source is None:
        if not Path(path).is_file():
            raise ClusterError(f"{path} is no file of this machine")
        status = Path(path).stat()
        return status.st_size, status.st_mode & 0o777
    size, mode = source.run("stat", "-Lc", "%s %a", "--", str(path)).stdout.split()
    return int(size), int(mode, 8) & 0o777


def _source_digest(source: Host | None, path: PurePath, size: int) -> str:
    if source is None:
        return sha256_of(Path(path))
    try:
        return _digest(source, path, size)
    except Lost as lost:
        raise Unreachable(source.name, str(lost)) from None


def _digest(host: Host, path: PurePath, size: int) -> str:
    # By standard input: where a name has odd characters, sha256sum writes its line differently.
    said = ask(host, "sh", "-c", 'sha256sum < "$1"', "digest", str(path), timeout_s=60 + size / SLOWEST_DISK)
    return said[: hashlib.sha256().digest_size * 2]
