"""What `make run` does: the deployment openclaw/local-cpu through a real Prefect server and worker, on a tiny model."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

import psutil
import pytest
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterFlowRunId, LogFilter, LogFilterFlowRunId
from prefect.client.schemas.objects import Log
from prefect.settings import PREFECT_API_URL, temporary_settings
from transformers import AutoModelForCausalLM

from openclaw_core.ledger import Ledger, StepState
from openclaw_core.loop.client import PHASES
from openclaw_core.rundir import RunDir, list_runs
from tests.integration.prefect_runs import step_runs, task_runs
from tests.ports import free_ports

STEPS = 2
SETTINGS = {
    "model.name": "tiny",
    "model.context_length": 512,
    "rollout.batch_size": 4,
    "rollout.max_response_tokens": 12,
    "feeder.sessions_in_flight": 4,
    "evaluation.problems": 2,
    "cluster.ray_object_store_mb": 100,
}


@dataclass(frozen=True)
class Launched:
    """How `make run` ended."""

    code: int
    output: str
    run: RunDir
    flow_run_id: UUID


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where the server and worker of this test live; ended by recorded pid, also if the test fails."""
    state = tmp_path_factory.mktemp("state")
    yield state
    launcher("stop", "--state", str(state))
    assert not [process for process in psutil.process_iter() if str(state) in " ".join(_command(process))]


@pytest.fixture(scope="module")
def ports() -> dict[str, int]:
    return free_ports()


@pytest.fixture(scope="module")
def launched(state: Path, ports: dict[str, int], tiny_llama_dir: Path) -> Launched:
    return run_deployment(state, ports, tiny_llama_dir, STEPS)


def launcher(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "flows.launcher", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)


def run_deployment(state: Path, ports: dict[str, int], model: Path, steps: int) -> Launched:
    place = {"paths.runs": str(state / "runs"), "paths.models": str(state / "models"), "model.source": f"file://{model}"}
    settings = [part for name, value in {**SETTINGS, **place, **ports}.items() for part in ("--set", f"{name}={value}")]
    done = launcher("run", "--steps", str(steps), "--state", str(state), *settings)
    run = list_runs(state / "runs")[-1]
    page = next(line for line in done.stdout.splitlines() if line.startswith(f"Run {run.run_id}: "))
    return Launched(done.returncode, done.stdout + done.stderr, run, UUID(page.rpartition("/")[2]))


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


@pytest.mark.timeout(900)
def test_it_trains_and_ends_with_a_summary(launched: Launched):
    assert launched.code == 0, launched.output
    steps = Ledger(launched.run.ledger_file).steps()
    assert [(record.state, record.version) for record in steps] == [(StepState.REPORTED, 1), (StepState.REPORTED, 2)]
    assert len(launched.run.metrics_file.read_text().splitlines()) == STEPS
    summary = json.loads(launched.run.summary_file.read_text())
    assert Path(summary["checkpoint"]).is_dir()
    AutoModelForCausalLM.from_pretrained(summary["export"])
    for told in ("held-out, satisfied", "difference", summary["checkpoint"], summary["export"], summary["metrics"]):
        assert told in launched.output


def test_its_progress_was_shown(launched: Launched):
    assert "build-image: skipped, preset local-cpu has no containers" in launched.output
    assert "env-check: completed" in launched.output
    assert f"step 1/{STEPS}" in launched.output
    assert "evaluate-before: completed, satisfied" in launched.output


def test_prefect_has_a_run_for_every_step_and_the_artifacts(launched: Launched, ports: dict[str, int]):
    with temporary_settings({PREFECT_API_URL: f"http://127.0.0.1:{ports['ports.prefect']}/api"}):
        names = [task.name for task in task_runs(launched.flow_run_id)]
        steps = step_runs(launched.flow_run_id)
        phases = [task.name for task in task_runs(steps[0].id)]
        with get_client(sync_client=True) as client:
            wanted = ArtifactFilter(flow_run_id=ArtifactFilterFlowRunId(any_=[launched.flow_run_id]))
            artifacts = {artifact.key for artifact in client.read_artifacts(artifact_filter=wanted)}
    stages = ["build-image", "distribute-image", "download-model", "convert-checkpoint", "env-check", "launch-ray"]
    assert names[: len(stages)] == stages
    assert {"train-loop", "feeder"} <= set(names)
    assert names[-1] == "teardown"
    assert [(step.name, step.state_name) for step in steps] == [("step-00001", "Completed"), ("step-00002", "Completed")]
    assert phases == list(PHASES)
    assert {"env-check", "train-progress", "train-metrics", "summary"} <= artifacts


def test_what_the_service_and_its_ranks_wrote_is_on_the_runs_page(launched: Launched, ports: dict[str, int]):
    wanted = LogFilter(flow_run_id=LogFilterFlowRunId(any_=[launched.flow_run_id]))
    lines: list[Log] = []
    api = {PREFECT_API_URL: f"http://127.0.0.1:{ports['ports.prefect']}/api"}
    with temporary_settings(api), get_client(sync_client=True) as client:
        while page := client.read_logs(wanted, limit=200, offset=len(lines)):
            lines += page
    texts = [line.message for line in lines]
    assert sum("event=service_ready" in text for text in texts) == 1
    assert any("TrainerWorker" in text for text in texts)
    assert not any("event=chat_answered" in text for text in texts), "single turns are in the ledger"


def test_nothing_of_the_run_is_left_but_prefect(launched: Launched, state: Path):
    assert "prefect-server: pid" in (left := launcher("status", "--state", str(state)).stdout)
    assert "ray-head" not in left
    assert not [process for process in psutil.process_iter() if str(launched.run.path) in " ".join(_command(process))]


@pytest.mark.timeout(900)
def test_a_second_run_takes_up_server_worker_and_model(
    launched: Launched, state: Path, ports: dict[str, int], tiny_llama_dir: Path
):
    again = run_deployment(state, ports, tiny_llama_dir, steps=1)
    assert again.code == 0, again.output
    assert "download-model: reused, " in again.output
    assert "convert-checkpoint: reused, " in again.output
    assert again.run != launched.run
