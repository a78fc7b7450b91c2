"""What a person finds on a run's page in Prefect: each artifact once, always up to date, and nothing that grows."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from prefect import flow, task
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterFlowRunId
from prefect.client.schemas.objects import Artifact
from prefect.runtime import flow_run as this_run

from openclaw_core.config import RunConfig, load_config
from openclaw_core.loop.client import PHASES
from openclaw_core.report import recorder
from openclaw_core.report.samples import ShownSample
from openclaw_core.rundir import RunDir, create_run
from tasks.reporting import run_shown, show_placement
from tests.control_stub import StubService
from tests.ports import free_ports
from tests.report_parts import NASTY, real_rows, write_rows

pytestmark = pytest.mark.usefixtures("prefect_server")
STEPS = 60
SAMPLE: ShownSample = {
    "turn_id": "t1",
    "asked": NASTY,
    "answer": "Four.",
    "next_state": None,
    "reward": -1,
    "hints": ["Say why."],
    "votes": [{"question": "reward", "value": -1, "raw": "too short"}],
    "truncated": False,
}


class RealMetrics(StubService):
    """Steps that report what those of a real run did."""

    collecting = False

    def status(self) -> dict[str, Any]:
        if not self.collecting:
            return super().status()
        batch = {"ready": 5, "size": 16, "in_flight": 2, "judging": 1}
        words = "5 of 16 turns; 2 being generated"
        return super().status() | {"phase": "collect", "batch": batch, "waiting_for": words}

    def metrics(self, step: int) -> dict[str, Any]:
        row = real_rows(STEPS)[step - 1]
        return {name: value for name, value in row.items() if name not in ("step", "version")} | {"health/state": "warn"}

    def finish(self, steps: int) -> None:
        first = self.next_step
        self.done += [(step, phase) for step in range(first, first + steps) for phase in PHASES]


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    run = create_run(load_config("local-cpu", {"paths.runs": str(tmp_path), "train.steps": STEPS, **free_ports()}), "r")
    write_rows(run, real_rows(STEPS))  # here the service has a run directory of its own
    run.samples_file.write_text(json.dumps([{"step": 7, "good": None, "bad": SAMPLE}]))
    return run


@pytest.fixture
def service(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> Iterator[RealMetrics]:
    monkeypatch.setattr(recorder, "LOOK_S", 0.05)
    monkeypatch.setattr(recorder, "REPORT_S", 0.0)
    service = RealMetrics(STEPS, token=run.secrets().control_token)
    with service.serving(run.config().ports.control):
        yield service


def attempt(run: RunDir, service: RealMetrics, batches: int, steps: int) -> UUID:
    """A flow run in which the service finishes so many steps, ``batches`` times, while it is shown."""

    @task(name="train-loop")
    def train_loop() -> None:
        with run_shown(run.config(), run):
            for _ in range(batches):
                service.finish(steps)
                time.sleep(0.5)

    @flow
    def once() -> str:
        train_loop()
        return str(this_run.id)

    return UUID(once())


def artifacts(flow_run: UUID) -> dict[str, Artifact]:
    with get_client(sync_client=True) as client:
        found = client.read_artifacts(artifact_filter=ArtifactFilter(flow_run_id=ArtifactFilterFlowRunId(any_=[flow_run])))
    keys = [artifact.key for artifact in found]
    assert len(keys) == len(set(keys)), f"an artifact is there twice: {keys}"
    return {str(artifact.key): artifact for artifact in found}


def data(artifact: Artifact) -> str:
    assert isinstance(artifact.data, str)
    return artifact.data


def events(name: str) -> int:
    with get_client(sync_client=True) as client:
        wanted = {"filter": {"event": {"name": [name]}}, "limit": 50}
        return client.request("POST", "/events/filter", json=wanted).json()["total"]  # type: ignore[arg-type]


def test_each_artifact_is_there_once_and_shows_the_newest_step(run: RunDir, service: RealMetrics) -> None:
    found = artifacts(attempt(run, service, batches=4, steps=15))
    assert set(found) == {"train-progress", "batch-progress", "train-metrics", "plots", "samples", "report"}
    assert found["train-progress"].data == 100
    assert found["train-progress"].description == f"Run r: {STEPS} of {STEPS} steps"
    table = json.loads(data(found["train-metrics"]))
    assert [row["step"] for row in table] == [str(step) for step in range(11, 61)]
    assert {row["health"] for row in table} == {"🟡 warn"}
    assert data(found["plots"]).startswith("![plots of r](data:image/svg+xml;base64,")
    assert "Say why." in data(found["samples"]) and "No turn of this step was judged good." in data(found["samples"])
    assert run.report_file.as_uri() in data(found["report"])
    assert sum(len(str(artifact.data)) for artifact in found.values()) < 150_000


def test_an_attempt_that_is_made_anew_shows_the_steps_before_it(run: RunDir, service: RealMetrics) -> None:
    attempt(run, service, batches=1, steps=3)
    found = artifacts(attempt(run, service, batches=1, steps=2))
    assert [row["step"] for row in json.loads(data(found["train-metrics"]))] == ["1", "2", "3", "4", "5"]
    assert found["train-progress"].data == pytest.approx(100 * 5 / STEPS)


def test_an_update_leaves_no_event_with_its_data(run: RunDir, service: RealMetrics) -> None:
    created = events("prefect.artifact.created")
    attempt(run, service, batches=3, steps=2)
    end = time.monotonic() + 30
    while events("prefect.artifact.created") < created + 6:
        assert time.monotonic() < end
        time.sleep(0.5)
    assert events("prefect.artifact.updated") == 0


def test_the_batch_says_what_it_waits_for(run: RunDir, service: RealMetrics) -> None:
    service.collecting = True
    shown = artifacts(attempt(run, service, batches=1, steps=1))["batch-progress"]
    assert shown.data == 31.25
    assert shown.description == "Step 2, collect: 5 of 16 turns; 2 being generated"


def test_what_is_where_has_a_table() -> None:
    config: RunConfig = load_config("4b-2nodes")

    @flow
    def once() -> str:
        show_placement(config, "r")
        return str(this_run.id)

    rows = json.loads(data(artifacts(UUID(once()))["placement"]))
    assert {row["role"] for row in rows} >= {"service, gateway", "trainer", "engine", "scorer", "judge"}
    assert all(row["host"] for row in rows)
