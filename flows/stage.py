"""One stage alone, as for preparing a model before anybody needs it."""

from __future__ import annotations

from typing import Literal

from prefect import Task, flow
from prefect.client.schemas.objects import State
from prefect.runtime import flow_run as this_run

from flows import form
from flows.logs import log_to_prefect
from flows.parameters import open_run
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
    preset: form.Preset = "local-cpu",
    run_id: str = "",
    cluster: str = "",
    model: str = "",
    simulator: str = "",
    overrides: form.Overrides = None,
) -> State[StageResult]:
    """Run one stage.

    Args:
        name: Which stage.
        preset: Where all values come from that are not given here.
        run_id: An existing run, or a new one; default: preset and flow run.
        cluster: Name of an OpenClaw Cluster block, in place of the preset's hosts.
        model: Name of an OpenClaw Model block, in place of the preset's model.
        simulator: Name of an OpenClaw Simulator block, whose model plays the users.
        overrides: Any other parameter by its dotted name, as in {"rollout.batch_size": 8}.
    """
    log_to_prefect()
    parameters = {key: value for key, value in this_run.parameters.items() if key != "name"}
    return STAGES[name](str(open_run(parameters, this_run.id).path))
