"""Killed at any step, with or without a checkpoint on the way, a run comes to the same weights, bit for bit."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from openclaw_core.ledger import Ledger
from openclaw_core.rundir import RunDir
from tests.integration.learning import record_batches, tiny_run, train_recorded

pytestmark = pytest.mark.ranks

STEPS = 6


def recorded_run(directory: Path, name: str, layout: dict[str, Any], seed: int = 0) -> RunDir:
    run = tiny_run(directory, name, model__dtype="bf16", train__steps=STEPS, **layout)
    record_batches(ledger := Ledger(run.ledger_file), STEPS, seed)
    ledger.close()
    return run


def drive_and_kill(run: RunDir, address: str, *, save_at: int, kill_after: int) -> None:
    command = [sys.executable, "-W", "ignore", "-m", "tests.integration.learner_child"]
    arguments = [str(run.path), address, str(save_at), str(kill_after)]
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=300)
    assert done.returncode == -signal.SIGKILL, done.stderr


def table_file(run: RunDir, step: int) -> Path:
    return run.tables / f"step-{step:06d}.npz"


@pytest.mark.parametrize(
    ("layout", "saved"),
    [
        ({}, (0, 2)),
        ({"train__data_parallel": 2, "train__distributed_optimizer": True, "scorer__placement": "separate"}, (2,)),
    ],
    ids=["one rank, bf16", "DP2, distributed optimiser, separate scorer"],
)
async def test_six_steps_in_one_go_equal_three_a_kill_and_three(
    tmp_path: Path, ray_cluster: str, layout: dict[str, Any], saved: tuple[int, ...]
) -> None:
    """``saved``: step after which there is a checkpoint, 0: none; the steps after it up to the kill are replayed."""
    straight = recorded_run(tmp_path, "straight", layout)
    killed = {step: RunDir(straight.path.with_name(f"saved-{step}")) for step in saved}
    for run in killed.values():
        shutil.copytree(straight.path, run.path)
    expected = await train_recorded(straight)
    for step, run in killed.items():
        drive_and_kill(run, ray_cluster, save_at=step, kill_after=3)
        for replayed in range(step + 1, 4):
            table_file(run, replayed).unlink()
        with capture_logs() as log:
            checksum = await train_recorded(run)
        assert [entry["step"] for entry in log if entry["event"] == "replay_step"] == list(range(step + 1, 4))
        assert checksum == expected
        for made in range(1, STEPS + 1):
            assert table_file(run, made).read_bytes() == table_file(straight, made).read_bytes()
    # The comparison can fail: other samples lead elsewhere.
    if not layout:
        assert await train_recorded(recorded_run(tmp_path, "other", layout, seed=1)) != expected
