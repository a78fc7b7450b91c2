"""Killed at any step, with or without a checkpoint on the way, a run comes to the same weights, bit for bit."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from openclaw_core.ledger import Ledger
from openclaw_core.rundir import RunDir
from tests.integration.learning import record_batches, tiny_run

STEPS = 6


def drive(run: RunDir, address: str, *, save_at: int = 0, kill_after: int = 0) -> tuple[str, str]:
    """The checksum that the driver printed (nothing where it was killed), and its log."""
    command = [sys.executable, "-W", "ignore", "-m", "tests.integration.learner_child"]
    arguments = [str(run.path), address, str(save_at), str(kill_after)]
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=300)
    assert done.returncode == (-signal.SIGKILL if kill_after else 0), done.stderr
    return done.stdout.splitlines()[-1] if done.stdout else "", done.stderr + done.stdout


def copy(run: RunDir, name: str) -> RunDir:
    other = RunDir(run.path.with_name(name))
    shutil.copytree(run.path, other.path)
    return other


@pytest.mark.parametrize(
    ("layout", "saved"),
    [
        ({}, (0, 2)),
        ({"train__data_parallel": 2, "train__distributed_optimizer": True, "scorer__placement": "separate"}, (2,)),
    ],
    ids=["one rank, bf16", "DP2, distributed optimiser, separate scorer"],
)
def test_six_steps_in_one_go_equal_three_a_kill_and_three(
    tmp_path: Path, ray_cluster: str, layout: dict[str, Any], saved: tuple[int, ...]
) -> None:
    """``saved``: step after which there is a checkpoint, 0: none; the steps after it up to the kill are replayed."""
    straight = tiny_run(tmp_path, "straight", model__dtype="bf16", train__steps=STEPS, **layout)
    record_batches(ledger := Ledger(straight.ledger_file), STEPS)
    ledger.close()
    killed = {step: copy(straight, f"saved-{step}") for step in saved}
    expected, _ = drive(straight, ray_cluster)
    for step, run in killed.items():
        drive(run, ray_cluster, save_at=step, kill_after=3)
        checksum, log = drive(run, ray_cluster)
        replayed = [n for n in range(1, STEPS + 1) if f"event=replay_step step={n} " in log]
        assert replayed == list(range(step + 1, 4))
        assert checksum == expected


def test_other_samples_lead_elsewhere(tmp_path: Path, ray_cluster: str) -> None:
    """The comparison above can fail."""
    one = tiny_run(tmp_path, "one", train__steps=1)
    other = tiny_run(tmp_path, "other", train__steps=1)
    for seed, run in enumerate((one, other)):
        record_batches(ledger := Ledger(run.ledger_file), 1, seed)
        ledger.close()
    assert drive(one, ray_cluster)[0] != drive(other, ray_cluster)[0]
