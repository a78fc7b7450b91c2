"""`openclaw-rl run` on a tiny model: real Ray, trainer, engine, gateway and feeder; the service killed on the way."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import psutil
import pytest
import ray
import torch
from structlog.testing import capture_logs
from transformers import AutoModelForCausalLM, AutoTokenizer

from openclaw_core.ledger import Ledger, StepState, TurnStatus
from openclaw_core.rundir import RunDir
from openclaw_core.weights.checksum import checksum_directory
from tests.integration.learning import train_recorded
from tests.models import tiny_llama
from tests.ports import free_ports

STEPS = 3
SETTINGS = {
    "model.name": "tiny",
    "model.dtype": "fp32",
    "engine.dtype": "fp32",
    "train.steps": STEPS,
    "train.save_interval": 2,
    "train.threads": 1,
    "engine.threads": 1,
    "rollout.batch_size": 4,
    "rollout.max_response_tokens": 12,
    "feeder.sessions_in_flight": 4,
    "evaluation.problems": 2,
    "cluster.silence_s": 5,
    "cluster.ray_object_store_mb": 200,
}


def start(directory: Path, extra: dict[str, object]) -> subprocess.Popen[str]:
    settings = [part for name, value in {**SETTINGS, **extra}.items() for part in ("--set", f"{name}={json.dumps(value)}")]
    command = [sys.executable, "-m", "openclaw_core.cli", "run", "--run-id", "r", *settings]
    environment = {**os.environ, "PYTHONPATH": str(Path.cwd()), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        command, cwd=directory, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )


def kill_service_after_step(run: RunDir, step: int, deadline_s: float = 240) -> None:
    """SIGKILL the training service once ``step`` is reported and the next batch has begun."""
    end = time.monotonic() + deadline_s
    while time.monotonic() < end:
        if run.metrics_file.exists() and len(run.metrics_file.read_text().splitlines()) >= step:
            break
        time.sleep(0.2)
    else:
        pytest.fail(f"step {step} was not reported within {deadline_s} s")
    for process in psutil.process_iter(["cmdline"]):
        command = process.info["cmdline"] or []
        if "serve" in command and str(run.path) in command and "-m" in command and "/bin/sh" not in command[0]:
            process.send_signal(signal.SIGKILL)


@pytest.mark.drills
@pytest.mark.timeout(900)
def test_a_run_survives_the_death_of_its_service_and_trains_every_turn_once(tmp_path: Path) -> None:
    tiny_llama(tmp_path / "hf", seed=3)
    ports = free_ports()
    run = RunDir(tmp_path / "runs" / "r")
    process = start(tmp_path, {"model.source": f"file://{tmp_path / 'hf'}", **ports})
    try:
        kill_service_after_step(run, 1)
        output, _ = process.communicate(timeout=600)
    finally:
        process.kill()
    assert process.returncode == 0, output

    ledger = Ledger(run.ledger_file)
    steps = ledger.steps()
    assert [record.state for record in steps] == [StepState.REPORTED] * STEPS
    assert [record.version for record in steps] == [1, 2, 3]
    trained = Counter(turn_id for record in steps for turn_id in record.turn_ids)
    assert set(trained.values()) == {1}
    assert len(trained) == ledger.count(TurnStatus.TRAINED) == STEPS * SETTINGS["rollout.batch_size"]  # type: ignore[operator]
    lines = [json.loads(line) for line in run.metrics_file.read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2, 3]
    # In fp32 engine and trainer are one policy: the engine really serves what the trainer published, also after the restart.
    assert all(line["train/engine_parity_abs_diff"] < 1e-4 for line in lines)
    assert all(line["train/train_rollout_logprob_abs_diff_unshaped"] < 1e-4 for line in lines)
    # Step 1 was trained but in no checkpoint yet: the second service trained it again from the recorded samples.
    assert "event=replay_step step=1" in (run.logs / "service-2.log").read_text()

    summary = json.loads(run.summary_file.read_text())
    assert summary["version"] == STEPS
    assert f"checksum {checksum_directory(run.export)}" in output
    assert differs(run.export, tmp_path / "hf")
    # Nobody disturbs this one: the same recorded samples, one after the other, from the start model.
    assert undisturbed(run) == checksum_directory(run.export)


@pytest.mark.timeout(900)
def test_a_run_with_two_trainer_ranks_and_a_scorer_of_its_own(tmp_path: Path) -> None:
    tiny_llama(tmp_path / "hf", seed=3)
    ranks = {"train.data_parallel": 2, "train.distributed_optimizer": True, "scorer.placement": "separate", "train.steps": 2}
    process = start(tmp_path, {"model.source": f"file://{tmp_path / 'hf'}", **free_ports(), **ranks, "scorer.threads": 1})
    try:
        output, _ = process.communicate(timeout=600)
    finally:
        process.kill()
    assert process.returncode == 0, output
    run = RunDir(tmp_path / "runs" / "r")
    lines = [json.loads(line) for line in run.metrics_file.read_text().splitlines()]
    assert [line["train/optimizer_steps"] for line in lines] == [1, 1]
    # Engine, trainer and scorer are one policy, step after step: no sample was masked for its scores.
    assert all(line["train/engine_parity_abs_diff"] < 1e-4 for line in lines)
    assert all("missing_score" not in line["rollout/dropped"] for line in lines)
    assert any(line["train/opd_abs_mean"] for line in lines)
    assert f"checksum {checksum_directory(run.export)}" in output


def undisturbed(run: RunDir) -> str:
    """The checksum of the weights that a fresh trainer comes to from the run's ledger alone."""
    other = RunDir(run.path.with_name("undisturbed"))
    shutil.copytree(run.path, other.path, ignore=shutil.ignore_patterns("checkpoints", "export"))
    ray.init(address="local", num_cpus=1, include_dashboard=False, object_store_memory=100 * 2**20, log_to_driver=False)
    try:
        with capture_logs() as log:
            checksum = asyncio.run(train_recorded(other))
    finally:
        ray.shutdown()
    assert [entry["step"] for entry in log if entry["event"] == "replay_step"] == list(range(1, STEPS + 1))
    return checksum


def differs(trained: Path, start: Path) -> bool:
    """Whether training has changed the weights, and left a model that transformers loads."""
    AutoTokenizer.from_pretrained(trained)
    one, other = (AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32) for path in (trained, start))
    return any(not torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))
