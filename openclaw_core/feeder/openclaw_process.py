"""One run of the openclaw CLI: its output in files, its end by a deadline, nothing of it left behind."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from openclaw_core.feeder.errors import TaskFailed

GRACE_S = 30.0
"""What the CLI gets beyond the deadline that it is told, to start and to end by itself."""


@dataclass(frozen=True, slots=True)
class Finished:
    """How a process ended. ``code`` is None where it was still running at the deadline and was killed."""

    code: int | None
    stdout: str
    stderr: str


async def run_process(
    command: Sequence[str | Path], *, env: Mapping[str, str], folder: Path, output: Path, deadline_s: float
) -> Finished:
    """Run ``command`` in ``folder``, its output in ``output``.out and ``output``.err: what it starts may outlive it, and would
    hold a pipe open.

    Raises:
        TaskFailed: it cannot be started: an argument is too long for the system, say.
    """
    files = output.with_suffix(".out"), output.with_suffix(".err")
    with files[0].open("wb") as out, files[1].open("wb") as err:
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env=dict(env),
                cwd=folder,
                start_new_session=True,
            )
        except OSError as error:
            raise TaskFailed(f"{command[0]} cannot be started: {error.strerror}") from error
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(deadline_s):
                    await process.wait()
            code = process.returncode
        finally:
            if process.returncode is None:
                _kill(process.pid)
                await process.wait()
    return Finished(code, *(file.read_text(errors="replace") for file in files))


def _kill(pid: int) -> None:
    """End a process that leads its group, that group, and what it started in groups of their own."""
    with contextlib.suppress(psutil.NoSuchProcess):
        descendants = psutil.Process(pid).children(recursive=True)
        for process in descendants:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
