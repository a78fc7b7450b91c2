"""A real Ray head and a real job on it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from openclaw_core import stages
from openclaw_core.cluster import ray_head
from openclaw_core.cluster.errors import ClusterError
from openclaw_core.cluster.job import ServiceJob
from openclaw_core.config import load_config
from openclaw_core.rundir import RunDir, create_run
from tests.ports import free_ports

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunDir]:
    """A run whose model does not exist, so that its service fails while it starts."""
    place = tmp_path_factory.mktemp("ray")
    overrides = {"paths.runs": str(place / "runs"), "paths.models": str(place / "models"), "cluster.ray_object_store_mb": 100}
    run = create_run(load_config("local-cpu", {**overrides, **free_ports()}), "r")
    yield run
    stages.teardown(run.config(), run)


def test_the_head_is_started_once_and_taken_up_again(run: RunDir):
    assert stages.launch_ray(run.config(), run)["status"] == "done"
    head = ray_head.find_head(run)
    assert stages.launch_ray(run.config(), run)["status"] == "reused"
    assert ray_head.find_head(run) == head is not None


def test_its_job_api_refuses_whoever_has_not_the_runs_token(run: RunDir):
    assert httpx.get(f"{ray_head.dashboard_url(run.config())}/api/version").status_code == 401


def test_a_second_run_on_the_same_ports_is_refused(run: RunDir, tmp_path: Path):
    paths = run.config().paths.model_copy(update={"runs": tmp_path})
    other = create_run(run.config().model_copy(update={"paths": paths}), "other")
    with pytest.raises(ClusterError, match=r"\(ports.ray_gcs\) is taken by pid"):
        stages.launch_ray(other.config(), other)


def test_a_service_that_cannot_start_shows_its_own_exception(run: RunDir):
    with pytest.raises(stages.StageError) as error:
        stages.attach_service(run.config(), run)
    message = str(error.value)
    assert message.startswith("the training service ended while it was starting; its last lines:")
    assert "SmolLM2-135M-Instruct/hf" in message


def test_the_next_attempt_has_the_next_number(run: RunDir):
    job = ServiceJob(run.config(), run)
    assert job.submit(("sleep", "60")) == "r-2"
    job.stop()
    assert not job.active


def test_teardown_leaves_the_logs_and_nothing_else(run: RunDir):
    head = ray_head.find_head(run)
    temporary = ray_head.driver_log(run, "r-1").parents[3]
    assert head is not None
    assert temporary.exists()
    assert stages.teardown(run.config(), run)["status"] == "done"
    assert head.handle() is None
    assert not temporary.exists()
    assert "SmolLM2-135M-Instruct/hf" in (run.logs / "service-1.log").read_text()
    assert stages.teardown(run.config(), run)["status"] == "skipped"
