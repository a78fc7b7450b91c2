"""Stage tasks under Prefect: what is cached, and what a retry does again."""

from __future__ import annotations

from pathlib import Path

import pytest
from prefect import flow
from prefect.runtime import flow_run as this_run

from openclaw_core.config import load_config
from openclaw_core.rundir import RunDir, create_run
from openclaw_core.weights.layout import hf_directory
from tasks.build_image import build_image
from tasks.distribute_image import distribute_image
from tasks.download_model import download_model
from tasks.env_check import env_check
from tests.integration.prefect_runs import task_runs
from tests.ports import free_ports

pytestmark = pytest.mark.usefixtures("prefect_server")


@pytest.fixture
def run(tmp_path: Path, tiny_llama_dir: Path) -> RunDir:
    paths = {"paths.runs": str(tmp_path / "runs"), "paths.models": str(tmp_path / "models")}
    model = {"model.name": "tiny", "model.source": f"file://{tiny_llama_dir}"}
    return create_run(load_config("local-cpu", {**paths, **model, **free_ports()}), "r")


def states(flow_run_id: str) -> list[tuple[str, str]]:
    return [(run.name, str(run.state_name)) for run in task_runs(flow_run_id)]  # pyright: ignore[reportArgumentType]


def test_each_stage_does_its_own_work_and_says_so(run: RunDir):
    """They have the same inputs: keyed by these alone, the second would be handed the first one's result."""

    @flow
    def chain() -> str:
        build_image(str(run.path))
        distribute_image(str(run.path))
        download_model(str(run.path))
        return str(this_run.id)

    done = task_runs(chain())  # pyright: ignore[reportArgumentType]
    assert [(task.name, task.state_name) for task in done] == [
        ("build-image", "Skipped"),
        ("distribute-image", "Skipped"),
        ("download-model", "Completed"),
    ]
    assert [task.state and task.state.message for task in done][:2] == ["preset local-cpu has no containers"] * 2
    assert (hf_directory(run.config()) / "config.json").exists()


def test_a_retry_keeps_what_is_done_and_checks_the_machine_again(run: RunDir):
    attempts: list[int] = []

    @flow(retries=1, retry_delay_seconds=0, persist_result=True)
    def chain() -> str:
        build_image(str(run.path))
        download_model(str(run.path))
        env_check(str(run.path))
        attempts.append(1)
        if len(attempts) == 1:
            raise RuntimeError("what comes next has failed")
        return str(this_run.id)

    assert states(chain()) == [
        ("build-image", "Skipped"),
        ("download-model", "Completed"),
        ("env-check", "Completed"),
        ("build-image", "Cached"),
        ("download-model", "Cached"),
        ("env-check", "Completed"),
    ]


def test_a_new_run_finds_the_files_of_an_earlier_one(run: RunDir):
    @flow
    def prepare() -> str:
        download_model(str(run.path))
        return str(this_run.id)

    assert states(prepare()) == [("download-model", "Completed")]
    assert states(prepare()) == [("download-model", "Reused")]
