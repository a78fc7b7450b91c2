"""A CLI process: its output, its deadline, and that nothing of it is left."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import psutil
import pytest

from openclaw_core.feeder.errors import TaskFailed
from openclaw_core.feeder.openclaw_process import Finished, run_process

SLEEPERS = "setsid sleep 600 & own=$!; sleep 600 & echo $$ $own $!; wait"
"""A shell, a child in a session of its own, and one in the shell's."""


async def run(folder: Path, script: str, deadline_s: float = 60, **env: str) -> Finished:
    command = ["/bin/sh" if script is SLEEPERS else sys.executable, "-c", script]
    return await run_process(command, env=env, folder=folder, output=folder / "o", deadline_s=deadline_s)


async def test_output_code_folder_and_environment(tmp_path: Path) -> None:
    script = (
        "import os, sys; print(os.getcwd(), os.environ['A'], 'HOME' in os.environ); print('é', file=sys.stderr); sys.exit(3)"
    )
    finished = await run(tmp_path, script, A="b", PYTHONUTF8="1")
    assert finished == Finished(3, f"{tmp_path} b False\n", "é\n")


async def test_what_outlives_it_does_not_hold_it_up(tmp_path: Path) -> None:
    script = "import subprocess; print(subprocess.Popen(['sleep', '600'], start_new_session=True).pid)"
    finished = await run(tmp_path, script)
    psutil.Process(int(finished.stdout)).kill()
    assert finished.code == 0


async def pids(output: Path) -> list[int]:
    """Of the process and what it started, once it has said them."""
    async with asyncio.timeout(30):
        while not output.exists() or not output.read_text().endswith("\n"):
            await asyncio.sleep(0.01)
    return [int(pid) for pid in output.read_text().split()]


async def gone(started: list[int]) -> bool:
    async with asyncio.timeout(30):
        while any(psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE for pid in started):
            await asyncio.sleep(0.01)
    return True


async def test_nothing_is_left_after_the_deadline(tmp_path: Path) -> None:
    finished = await run(tmp_path, SLEEPERS, deadline_s=2, PATH="/usr/bin:/bin")
    assert finished.code is None
    assert await gone(await pids(tmp_path / "o.out"))


async def test_nothing_is_left_after_a_cancel(tmp_path: Path) -> None:
    task = asyncio.create_task(run(tmp_path, SLEEPERS, PATH="/usr/bin:/bin"))
    started = await pids(tmp_path / "o.out")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await gone(started)


@pytest.mark.parametrize(
    ("command", "complaint"),
    [(["/nowhere/node"], "No such file"), ([sys.executable, "-c", "x" * 200_000], "Argument list too long")],
)
async def test_what_cannot_be_started_is_said(tmp_path: Path, command: list[str], complaint: str) -> None:
    with pytest.raises(TaskFailed, match=complaint):
        await run_process(command, env={}, folder=tmp_path, output=tmp_path / "o", deadline_s=10)
