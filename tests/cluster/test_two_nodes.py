"""The deployment openclaw/2nodes-sim through Prefect: two hosts with SSH and Docker of their own, Ray over both, two steps."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from openclaw_core.cluster.docker.containers import Engine
from openclaw_core.cluster.hosts import Hosts
from openclaw_core.cluster.simulation import Simulation
from openclaw_core.cluster.simulation.cluster import as_overrides, simulated_cluster
from openclaw_core.cluster.simulation.image import sim_build_context
from openclaw_core.cluster.specs import host_path, run_path
from openclaw_core.config.cluster import ClusterConfig, MountConfig
from openclaw_core.ledger import Ledger, StepState
from openclaw_core.rundir import RunDir, list_runs
from tests.ports import free_ports

pytestmark = pytest.mark.cluster

STEPS = 2
SETTINGS = {
    "model.name": "of-two-nodes",  # its own, so that the stages have something to do
    "model.source": "file:///model",
    "model.context_length": 512,
    "rollout.max_response_tokens": 12,
    "feeder.sessions_in_flight": 4,
}


@dataclass(frozen=True)
class Trained:
    """How the run ended, and the run's directory on the head's own disk."""

    code: int
    output: str
    run: RunDir
    on_head: Path


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    state = tmp_path_factory.mktemp("state")
    yield state
    launcher("stop", "--state", str(state))


@pytest.fixture(scope="module")
def cluster(two_hosts: Simulation, tiny_llama_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> ClusterConfig:
    """The simulated hosts, with a tiny model as something that lies on them already."""
    cluster = simulated_cluster(two_hosts, sim_build_context(tmp_path_factory.mktemp("image") / "sim"))
    model = MountConfig.model_validate({"source": str(tiny_llama_dir), "target": "/model"})
    return cluster.model_copy(update={"mounts": (*cluster.mounts, model)})


@pytest.fixture(scope="module")
def trained(state: Path, cluster: ClusterConfig) -> Trained:
    # The other ports are opened on the hosts, where the preset's are free.
    own = {"paths.runs": str(state / "runs"), "ports.prefect": free_ports()["ports.prefect"]}
    values = SETTINGS | own | as_overrides(cluster)
    settings = [part for name, value in values.items() for part in ("--set", f"{name}={json.dumps(value)}")]
    done = launcher("run", "--preset", "2nodes-sim", "--steps", str(STEPS), "--state", str(state), *settings)
    run = list_runs(state / "runs")[-1]
    return Trained(done.returncode, done.stdout + done.stderr, run, Path(host_path(cluster.head, run_path(run.run_id))))


def launcher(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "flows.launcher", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)


@pytest.mark.timeout(900)
def test_it_trains_over_both_hosts_and_ends_with_a_summary(trained: Trained):
    assert trained.code == 0, trained.output
    steps = Ledger(trained.on_head / "ledger.sqlite").steps()
    assert [(record.state, record.version) for record in steps] == [(StepState.REPORTED, 1), (StepState.REPORTED, 2)]
    summary = json.loads(trained.run.summary_file.read_text())
    assert (summary["steps"], summary["version"]) == (STEPS, 2)


def test_every_stage_did_its_work_on_the_hosts(trained: Trained):
    # Other tests of this session may have brought the image already.
    for told in (
        r"build-image: (completed|reused), openclaw-sim:1 on node-a",
        r"distribute-image: (completed|reused), image sent to (node-b|no host, all have it); code \w{12} is on all hosts",
        r"download-model: completed, file:///model: .* on node-a, copied to node-b",
        r"convert-checkpoint: completed, bf16 weights: converted on node-a",
        r"launch-ray: completed, Ray on node-a, node-b",
        r"teardown: completed",
    ):
        assert re.search(told, trained.output), told


def test_the_judge_was_on_the_other_host(trained: Trained):
    assert "host=node-b" in next(
        line for line in (trained.run.logs / "service-1.log").read_text().splitlines() if "event=judge_placed" in line
    )


def test_what_the_hosts_wrote_is_kept_on_the_launch_machine(trained: Trained):
    assert len(trained.run.metrics_file.read_text().splitlines()) == STEPS
    kept = {file.name for file in trained.run.logs.glob("*.log")}
    run_id = trained.run.run_id
    assert {"service-1.log", "feeder.log", f"openclaw-{run_id}-head.log", f"openclaw-{run_id}-worker.log"} <= kept


def test_keys_are_where_they_are_needed_and_nowhere_else(trained: Trained, cluster: ClusterConfig):
    keys = trained.run.secrets()
    head, other = (Path(host_path(host, run_path(trained.run.run_id))) for host in cluster.hosts)
    assert (head / "secrets.json").stat().st_mode & 0o777 == 0o600
    assert {file.name for file in other.iterdir() if file.is_file()} == {"config.json", "ray-token"}
    for key in (keys.api_key, keys.control_token, keys.ray_token):
        assert key not in trained.output
        assert not [log for log in trained.run.logs.glob("*.log") if key in log.read_text()]


def test_no_container_of_the_run_is_left(trained: Trained, cluster: ClusterConfig):
    with Hosts(cluster) as hosts:
        for host in hosts:
            with Engine(host) as engine:
                assert engine.of_run(trained.run.run_id) == []
