"""The flow `openclaw`, each stage failing in turn, and the same run retried: real stages, a control API that trains nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psutil
import pytest
from prefect.client.orchestration import get_client

from flows.openclaw import openclaw
from openclaw_core import stages
from openclaw_core.config import load_config
from openclaw_core.rundir import RunDir, create_run
from openclaw_core.stages import StageError
from openclaw_core.weights.layout import torch_dist_directory
from tests.control_stub import StubService
from tests.integration.evaluated import add_evaluations
from tests.integration.prefect_runs import retry, task_runs
from tests.ports import free_ports

pytestmark = [pytest.mark.drills, pytest.mark.usefixtures("prefect_server"), pytest.mark.timeout(600)]

SKIPPED = ["build-image", "distribute-image"]
"""By a preset without containers."""
PRODUCING = [*SKIPPED, "download-model", "convert-checkpoint"]
FUNCTIONS = {
    "build-image": "build_image",
    "distribute-image": "distribute_image",
    "download-model": "download_model",
    "convert-checkpoint": "convert_checkpoint",
    "env-check": "look_at_everything",
    "launch-ray": "launch_ray",
}
"""What a stage calls."""


@pytest.fixture
def overrides(tmp_path: Path, tiny_llama_dir: Path) -> dict[str, Any]:
    paths = {"paths.runs": str(tmp_path / "runs"), "paths.models": str(tmp_path / "models")}
    model = {"model.name": "tiny", "model.source": f"file://{tiny_llama_dir}", "model.context_length": 512}
    return {**paths, **model, "cluster.ray_object_store_mb": 100, **free_ports()}


@pytest.fixture
def run(overrides: dict[str, Any]) -> RunDir:
    run = create_run(load_config("local-cpu", overrides | {"train.steps": 2}), "r")
    add_evaluations(run)
    return run


class Attempts:
    """Attempts of one flow run."""

    def __init__(self, overrides: dict[str, Any]) -> None:
        parameters = {"preset": "local-cpu", "run_id": "r", "steps": 2, "overrides": overrides}
        with get_client(sync_client=True) as client:
            self.id = client.create_flow_run(openclaw, parameters=parameters).id
        self._seen = 0

    def next(self) -> tuple[str, list[tuple[str, str]]]:
        """How the next one ends, and its stages with their states."""
        ended = retry(openclaw, self.id)
        runs = [(task.name, str(task.state_name)) for task in task_runs(self.id) if "stage" in task.tags]
        new, self._seen = runs[self._seen :], len(runs)
        return str(ended.name), new


def fail_once(monkeypatch: pytest.MonkeyPatch, stage: str, *, after_its_work: bool = False) -> None:
    """The next call of a stage's function fails."""
    name, calls = FUNCTIONS[stage], []
    does = getattr(stages, name)

    def fails(*arguments: Any, **options: Any) -> Any:
        calls.append(1)
        if len(calls) > 1:
            return does(*arguments, **options)
        if after_its_work:
            does(*arguments, **options)
        raise StageError(f"{stage} has failed")

    monkeypatch.setattr(stages, name, fails)


def test_each_stage_fails_in_turn_and_a_retry_goes_on_from_there(
    run: RunDir, overrides: dict[str, Any], monkeypatch: pytest.MonkeyPatch
):
    attempts = Attempts(overrides)
    for stage in FUNCTIONS:
        fail_once(monkeypatch, stage, after_its_work=stage == "launch-ray")
    order = list(FUNCTIONS)
    for number, failing in enumerate(order):
        ended, found = attempts.next()
        assert ended == "Failed"
        last = order[number - 1] if number else None
        expected = [(stage, "Cached" if stage != last else _done(stage)) for stage in order[:number] if stage in PRODUCING]
        expected += [(stage, "Completed") for stage in order[:number] if stage not in PRODUCING]
        assert found == [*expected, (failing, "Failed")]

    service = StubService(2, token=run.secrets().control_token)
    service.failures[1, "train"] = (500, "the loss is not finite")
    with service.serving(run.config().ports.control):
        head = _ray_head(run)
        ended, found = attempts.next()
        assert ended == "Failed"
        again = [*((stage, "Cached") for stage in PRODUCING), ("env-check", "Completed"), ("launch-ray", "Reused")]
        assert found[: len(again)] == again
        assert ("train-loop", "Failed") in found
        assert _ray_head(run) == head, "the live cluster is found"

        ended, found = attempts.next()
        assert ended == "Completed"
        assert found[: len(again)] == again
        assert {("train-loop", "Completed"), ("teardown", "Completed")} <= set(found)
    assert not [
        process for process in psutil.process_iter(["cmdline"]) if str(run.path) in " ".join(process.info["cmdline"] or [])
    ]


def _done(stage: str) -> str:
    return "Skipped" if stage in SKIPPED else "Completed"


def _ray_head(run: RunDir) -> str:
    return (run.processes / "ray-head.json").read_text()


@pytest.mark.parametrize("damage", ["lost", "cut short"])
def test_a_retry_makes_anew_what_is_no_longer_there(
    damage: str, run: RunDir, overrides: dict[str, Any], monkeypatch: pytest.MonkeyPatch
):
    attempts = Attempts(overrides)
    for _ in range(2):
        fail_once(monkeypatch, "env-check")
    attempts.next()
    part = max(torch_dist_directory(run.config()).rglob("*.distcp"), key=lambda file: file.stat().st_size)
    whole = part.read_bytes()
    part.unlink() if damage == "lost" else part.write_bytes(whole[:-1])
    _, found = attempts.next()
    assert found == [
        *((stage, "Cached") for stage in PRODUCING[:-1]),
        ("convert-checkpoint", "Completed"),
        ("env-check", "Failed"),
    ]
    assert part.stat().st_size == len(whole)
    fail_once(monkeypatch, "env-check")
    _, found = attempts.next()
    assert found[: len(PRODUCING)] == [(stage, "Cached") for stage in PRODUCING]
