"""The whole chain: build-image → distribute-image → download-model → convert-checkpoint → env-check → launch-ray →
train-loop beside feeder → teardown."""

from __future__ import annotations

import sys
from typing import Any

from prefect import Flow, flow
from prefect.client.schemas.objects import FlowRun, State
from prefect.runtime import flow_run as this_run

from flows.logs import log_to_prefect
from flows.parameters import Overrides, Steps, config_of, default_run_id, locate_run, open_run
from flows.train_loop import train_loop
from openclaw_core.cluster.processes import Processes
from openclaw_core.loop.summary import Summary
from tasks.build_image import build_image
from tasks.convert_checkpoint import convert_checkpoint
from tasks.distribute_image import distribute_image
from tasks.download_model import download_model
from tasks.env_check import env_check
from tasks.feeder import feeding
from tasks.launch_ray import launch_ray
from tasks.reporting import show_dry_run
from tasks.teardown import teardown


def _run_name() -> str:
    parameters = this_run.parameters
    return parameters.get("run_id") or default_run_id(parameters["preset"], this_run.id)


def stop_run(flow: Flow[Any, Any], flow_run: FlowRun, state: State) -> None:
    """On cancel: a process of its own stops the run, since the service ends its phase and writes a checkpoint first."""
    run = locate_run(flow_run.parameters, str(flow_run.id))
    processes = Processes(run.processes)
    if run.config_file.exists() and processes.find("stop") is None:
        command = [sys.executable, "-m", "openclaw_core.cli", "stop", str(run.path)]
        processes.start("stop", command, log_file=run.logs / "stop.log")


@flow(name="openclaw", flow_run_name=_run_name, persist_result=True, on_cancellation=[stop_run])
def openclaw(
    preset: str = "local-cpu",
    steps: Steps | None = None,
    run_id: str | None = None,
    cluster: str | None = None,
    model: str | None = None,
    simulator: str | None = None,
    judge_key: str | None = None,
    overrides: Overrides | None = None,
    dry_run: bool = False,
) -> State[Summary] | None:
    """Train online from conversations. A failed run leaves its cluster as it is, and a retry takes it up.

    Args:
        preset: local-cpu, 2nodes-sim, 4b-1node, 4b-2nodes or 32b-8nodes; all values come from it.
        steps: Rollout steps, in place of the preset's.
        run_id: Directory below runs/; default: preset and flow run. An existing run is resumed.
        cluster: Name of an OpenClaw Cluster block, in place of the preset's hosts.
        model: Name of an OpenClaw Model block, in place of the preset's model.
        simulator: Name of an OpenClaw Simulator block, whose model plays the users.
        judge_key: Name of a Secret block with the key of a remote judge (judge.client openai).
        overrides: Any other parameter by its dotted name, as in {"rollout.batch_size": 8}.
        dry_run: Show what would be done on every host, and do nothing.
    """
    log_to_prefect()
    if dry_run:
        show_dry_run(config_of(this_run.parameters), _run_name())
        return None
    run_dir = str(open_run(this_run.parameters, this_run.id).path)
    build_image(run_dir)
    distribute_image(run_dir)
    download_model(run_dir)
    convert_checkpoint(run_dir)
    env_check(run_dir)
    launch_ray(run_dir)
    with feeding(run_dir) as feeder:
        trained = train_loop(run_dir, feeder)
    teardown(run_dir)
    return trained
