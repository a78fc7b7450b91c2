"""Data to and from a command on a host, through pipes of this machine."""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path, PurePath
from typing import IO

from openclaw_core.cluster.hosts import CONNECTION_FAILED, Host, HostError, Unreachable

CHUNK = 1 << 20
STALL_S = 120
"""Silence after which a connection counts as lost, though ssh still holds it."""


class Lost(Exception):
    """A connection ended in the middle: another try may go on from there."""

    def __init__(self, host: str, why: str) -> None:
        super().__init__(why.strip() or "the connection was lost")
        self.host = host


class Pipe:
    """A command on a host with one end on this machine. A context manager: it does not outlive the block."""

    def __init__(self, host: Host, line: list[str], *, stdin: bool) -> None:
        self._host = host
        self.said = ""
        """Its standard error, once it has ended."""
        # A file rather than a pipe: whatever else has the other end open, reading it never waits.
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the block
        self._process = subprocess.Popen(
            line,
            stdin=subprocess.PIPE if stdin else subprocess.DEVNULL,
            stdout=subprocess.DEVNULL if stdin else subprocess.PIPE,
            stderr=self._errors,
        )

    def __enter__(self) -> Pipe:
        return self

    def __exit__(self, *_error: object) -> None:
        self._process.kill()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()
        self._process.wait()
        self._errors.close()

    @property
    def input(self) -> int:
        """Descriptor to write to."""
        assert self._process.stdin is not None
        return self._process.stdin.fileno()

    @property
    def output(self) -> int:
        """Descriptor to read from."""
        assert self._process.stdout is not None
        return self._process.stdout.fileno()

    def end(self, deadline_s: float) -> int:
        """Close its input and wait for its end: its exit status. Raises Lost."""
        if self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()
        try:
            code = self._process.wait(timeout=deadline_s)
        except subprocess.TimeoutExpired:
            raise Lost(self._host.name, f"the command did not end within {deadline_s:.0f} s") from None
        self._errors.seek(0)
        self.said = self._errors.read(4000).decode(errors="replace")
        return code

    def check(self, code: int) -> None:
        """Raises Lost or HostError for an exit status other than 0."""
        if is_connection(code):
            raise Lost(self._host.name, self.said)
        if code:
            raise HostError(self._host.name, self.said.strip() or f"the copying command ended with status {code}")


@contextlib.contextmanager
def reading(source: Host | None, path: PurePath, offset: int) -> Iterator[tuple[int, Pipe | None]]:
    """A descriptor that gives the file from ``offset`` on."""
    if source is None:
        with Path(path).open("rb", buffering=0) as stream:
            stream.seek(offset)
            yield stream.fileno(), None
        return
    with Pipe(source, source.line("tail", "-c", f"+{offset + 1}", "--", str(path)), stdin=False) as reader:
        yield reader.output, reader


def pump(read: int, write: int, count: int, moved: Callable[[int], None]) -> int:
    """Move ``count`` bytes, or fewer where the reader ends early: how many are left. Raises BrokenPipeError, TimeoutError."""
    os.set_blocking(write, False)
    while count:
        _wait(read, select.POLLIN)
        chunk = memoryview(os.read(read, min(CHUNK, count)))
        if not chunk:
            break
        while chunk:
            _wait(write, select.POLLOUT)
            with contextlib.suppress(BlockingIOError):
                written = os.write(write, chunk)
                chunk, count = chunk[written:], count - written
                moved(written)
    return count


def _wait(descriptor: int, event: int) -> None:
    poll = select.poll()
    poll.register(descriptor, event)
    if not poll.poll(STALL_S * 1000):
        raise TimeoutError


def ask(host: Host, *command: str, timeout_s: float | None = None) -> str:
    """A command's output. Raises Lost where the connection failed, HostError where the command did."""
    try:
        output = host.run(*command, timeout_s=timeout_s, check=False)
    except Unreachable as error:
        raise Lost(host.name, str(error).removeprefix(f"host {host.name}: ")) from None
    if output.code == CONNECTION_FAILED:
        raise Lost(host.name, output.stderr)
    if output.code:
        raise HostError(host.name, output.stderr.strip()[-2000:] or f"a command ended with status {output.code}")
    return output.stdout


def script_on(
    host: Host, doing: str, script: str, *words: str, input: bytes | None = None, timeout_s: float | None = None
) -> str:
    """The output of a few lines of shell with ``words`` as $1 and so on. Raises HostError: what failed, and its words."""
    output = host.run("sh", "-c", script, "sh", *words, input=input, timeout_s=timeout_s, check=False)
    if output.code:
        why = output.stderr.strip()[-2000:] or f"it ended with status {output.code}"
        raise HostError(host.name, f"{doing}: {why}")
    return output.stdout


def is_connection(code: int) -> bool:
    """Whether an exit status is ssh's own: the connection failed, or somebody ended it."""
    return code == CONNECTION_FAILED or code < 0


def is_full(said: str) -> bool:
    """Whether a program's words are about a disk or a quota that has no more room."""
    return "No space left" in said or "quota" in said.lower()
