"""A host that goes away while a run is going on, and what becomes of the run."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from openclaw_core import stages
from openclaw_core.cluster.simulation import Simulation
from openclaw_core.cluster.simulation.cluster import as_overrides, simulated_cluster
from openclaw_core.cluster.simulation.image import sim_build_context
from openclaw_core.cluster.specs import on_host, run_path
from openclaw_core.config import load_config
from openclaw_core.config.schema import RunConfig
from openclaw_core.ledger import Ledger, StepState
from openclaw_core.loop.client import ControlClient, ServiceSilent, ServiceStatus
from openclaw_core.loop.summary import Summary
from openclaw_core.run import run_all
from openclaw_core.rundir import RunDir, create_run

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

STEPS = 3
AWAY_S = 30.0


class Going:
    """A run in a thread of its own."""

    def __init__(self, config: RunConfig, run: RunDir) -> None:
        self.config, self.run = config, run
        self.told: list[str] = []
        self._pool = ThreadPoolExecutor(max_workers=1)

    def __enter__(self) -> Going:
        self._future = self._pool.submit(run_all, self.config, self.run, self.told.append)
        return self

    def __exit__(self, *_error: object) -> None:
        self._pool.shutdown()
        if self._future.exception() is not None:
            stages.teardown(self.config, self.run)

    def end(self) -> Summary:
        return self._future.result()

    def wait_for(self, seen: Callable[[ServiceStatus], bool], deadline_s: float) -> ServiceStatus:
        end = time.monotonic() + deadline_s
        with ControlClient.of(self.run, self.config) as client:
            while time.monotonic() < end:
                assert not self._future.done(), self._future.result()
                try:
                    status = client.status(silence_s=0)
                except ServiceSilent:
                    status = None
                if status is not None and seen(status):
                    return status
                time.sleep(0.5)
        raise AssertionError(f"not seen within {deadline_s:g} s; the last line was {self.told[-1:]}")


@pytest.fixture
def going(two_hosts: Simulation, tiny_llama_dir: Path, tmp_path: Path) -> Iterator[Going]:
    cluster = as_overrides(simulated_cluster(two_hosts, sim_build_context(tmp_path / "sim")))
    cluster["cluster.mounts"].append({"source": str(tiny_llama_dir), "target": "/model"})
    tiny = {"model.name": "tiny", "model.source": "file:///model", "model.context_length": 512}
    sizes = {"rollout.max_response_tokens": 12, "feeder.sessions_in_flight": 4, "train.steps": STEPS}
    config = load_config("2nodes-sim", {**cluster, **tiny, **sizes, "paths.runs": str(tmp_path / "runs")})
    run = create_run(config, "loss")
    with Going(run.config(), run) as going:
        yield going


def test_the_judges_host_goes_away_and_comes_back(going: Going, two_hosts: Simulation):
    going.wait_for(lambda status: status.serving and status.step >= 1, deadline_s=600)
    gone = time.monotonic()
    two_hosts.cut("node-b")
    try:
        going.wait_for(lambda status: bool(status.advice and "host silent: node-b" in status.advice), deadline_s=60)
        time.sleep(max(0.0, AWAY_S - (time.monotonic() - gone)))
    finally:
        two_hosts.mend("node-b")
    summary = going.end()
    assert (summary["steps"], summary["version"]) == (STEPS, STEPS)
    steps = Ledger(Path(on_host(going.config.cluster.head, run_path("loss"))) / "ledger.sqlite").steps()
    assert [record.state for record in steps] == [StepState.REPORTED] * STEPS
    turns = [turn for record in steps for turn in record.turn_ids]
    assert len(turns) == len(set(turns)), "each turn was trained on once"
