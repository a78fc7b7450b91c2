"""One stage alone, as for preparing a model before anybody needs it."""

from __future__ import annotations

from typing import Literal

from prefect import Task, flow
from prefect.client.schemas.objects import State
from prefect.runtime import flow_run as this_run

from flows.logs import log_to_prefect
from flows.parameters import ClusterName, ModelName, Overrides, Preset, RunId, open_run
from openclaw_core.stages import StageResult
from tasks.build_image import build_image
from tasks.convert_checkpoint import convert_checkpoint
from tasks.distribute_image import distribute_image
from tasks.download_model import download_model
from tasks.env_check import env_check
from tasks.launch_ray import launch_ray

StageName = Literal["build-image", "distribute-image", "download-model", "convert-checkpoint", "env-check", "launch-ray"]

STAGES: dict[StageName, Task[[str], State[StageResult]]] = {
    "build-image": build_image,
    "distribute-image": distribute_image,
    "download-model": download_model,
    "convert-checkpoint": convert_checkpoint,
    "env-check": env_check,
    "launch-ray": launch_ray,
}


@flow(name="openclaw-stage", flow_run_name="{name}")
def stage(
    name: StageName,
    preset: Preset = "local-cpu",
    run_id: RunId | None = None,
    cluster: ClusterName | None = None,
    model: ModelName | None = None,
    overrides: Overrides | None = None,
) -> State[StageResult]:
    """Run the stage ``name`` for a run of its own, or for an existing one named by ``run_id``."""
    log_to_prefect()
    parameters = {key: value for key, value in this_run.parameters.items() if key != "name"}
    return STAGES[name](str(open_run(parameters, this_run.id).path))
