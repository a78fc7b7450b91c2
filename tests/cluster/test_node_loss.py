"""One run that loses a host after the other: an engine's, the judge's, and at last its head. The order of these tests is
that of the run's steps."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from openclaw_core.cluster.hosts import Hosts
from openclaw_core.cluster.simulation import Simulation
from openclaw_core.cluster.specs import host_path, ray_container, run_path
from openclaw_core.ledger import Ledger, StepState
from openclaw_core.rundir import create_run
from tests.cluster.going import Going, tiny_run
from tests.cluster.parts import cut, engine

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1500)]

STEPS = 4
AWAY_S = 30.0
ROLES = {"node-a": ("train", "rollout"), "node-b": ("prm",), "node-c": ("rollout",)}


@pytest.fixture(scope="module")
def hosts(can_simulate: None) -> Iterator[Simulation]:
    with Simulation.up(Path(tempfile.mkdtemp(prefix="oc-", dir="/tmp")), tuple(ROLES), ROLES) as simulation:
        yield simulation


@pytest.fixture(scope="module")
def going(hosts: Simulation, tiny_llama_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Going]:
    """With engine-0 on node-a and engine-1 on node-c."""
    sizes = {"engine__count": 2, "train__steps": STEPS, "train__save_interval": 2}
    waits = {"cluster__silence_s": 10, "cluster__ray_deadline_s": 300}
    config = tiny_run(hosts, tiny_llama_dir, tmp_path_factory.mktemp("loss"), **sizes, **waits)
    with Going(create_run(config, "loss")) as going:
        yield going


def test_an_engines_host_is_lost_the_others_go_on_and_it_comes_back(going: Going, hosts: Simulation):
    going.until_before(f"step 2/{STEPS}: collect")
    assert going.engines() == {"engine-0": True, "engine-1": True}
    # The cable first, as when the power fails: nobody gets a word of its end.
    with cut(hosts, "node-c"):
        hosts.end_engine("node-c")
        going.until_before(f"step 3/{STEPS}: collect")
        assert going.engines() == {"engine-0": True, "engine-1": False}
        assert going.answer() in ("stop", "length")
    hosts.start_engine("node-c")
    going.until_engines({"engine-0": True, "engine-1": True})


def test_the_judges_host_is_away_for_a_while(going: Going, hosts: Simulation):
    with cut(hosts, "node-b"):
        gone = time.monotonic()
        going.go_on(until=f"step {STEPS}/{STEPS}: train")
        going.wait_for(lambda status: "host silent: node-b" in (status.advice or ""), deadline_s=60)
        time.sleep(max(0.0, AWAY_S - (time.monotonic() - gone)))
        assert not going.has_begun(f"step {STEPS}/{STEPS}: score"), "no turn of the last step can have been judged"
    going.until_held()


def test_the_head_is_lost_and_the_run_makes_all_anew_and_ends(going: Going):
    before = containers(going)
    with Hosts(going.config.cluster) as hosts, engine(hosts.head) as docker:
        docker.containers.get(before[0]).kill()
    going.go_on(until=f"step {STEPS}/{STEPS}: report")
    going.until_held()
    after = containers(going)
    assert not set(before) & set(after)
    going.go_on()
    summary = going.end()
    assert (summary["steps"], summary["version"]) == (STEPS, STEPS)
    head_log = going.run.logs / f"{ray_container(going.config, going.run.run_id, going.config.cluster.head)}.log"
    assert [f"=== container {each[0][:12]} ===" in head_log.read_text() for each in (before, after)] == [True, True]
    first, second = ((going.run.logs / f"service-{attempt}.log").read_text() for attempt in (1, 2))
    assert "event=phase_started step=4 phase=score" in first
    assert "checkpoints/step_000002" in next(line for line in second.splitlines() if "event=checkpoint_loaded" in line)
    assert [line for line in second.splitlines() if "event=replay_step" in line and "step=3" in line]
    assert "event=replay_step step=2" not in second


def test_each_turn_was_trained_on_once_and_each_step_made_a_version(going: Going):
    steps = Ledger(Path(host_path(going.config.cluster.head, run_path(going.run.run_id))) / "ledger.sqlite").steps()
    assert [(record.state, record.version) for record in steps] == [(StepState.REPORTED, n) for n in range(1, STEPS + 1)]
    turns = [turn for record in steps for turn in record.turn_ids]
    assert len(turns) == len(set(turns)) == STEPS * going.config.rollout.batch_size


def containers(going: Going) -> list[str]:
    """Ids of Ray's on each host, the head's first."""
    found: list[str] = []
    with Hosts(going.config.cluster) as hosts:
        for host in hosts:
            with engine(host) as docker:
                found.append(docker.containers.get(ray_container(going.config, going.run.run_id, host.config)).id or "")
    return found
