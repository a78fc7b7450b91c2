"""The whole chain: build-image → distribute-image → download-model → convert-checkpoint → env-check → launch-ray →
train-loop beside feeder → teardown."""

from __future__ import annotations

from typing import Any

from prefect import Flow, flow
from prefect.client.schemas.objects import FlowRun, State
from prefect.exceptions import Pause, TerminationSignal
from prefect.runtime import flow_run as this_run
from prefect.states import Cancelled

from flows import form
from flows.logs import log_to_prefect
from flows.parameters import config_of, default_run_id, locate_run, open_run
from flows.stand_in import at_work_on_hosts, await_last_attempt, start_stand_in
from flows.sweep import close_left_open
from flows.train_loop import train_loop
from openclaw_core.driver import DriverState, RunStopped, driving
from openclaw_core.loop.summary import Summary
from openclaw_core.rundir import RunDir
from tasks.build_image import build_image
from tasks.convert_checkpoint import convert_checkpoint
from tasks.distribute_image import distribute_image
from tasks.download_model import download_model
from tasks.env_check import env_check
from tasks.feeder import feeding
from tasks.launch_ray import launch_ray
from tasks.reporting import show_dry_run
from tasks.teardown import teardown

ENDS = {Pause: DriverState.SUSPENDED, TerminationSignal: DriverState.STOPPED, RunStopped: DriverState.STOPPED}
"""How a run stands after what ends its flow and is no failure."""


def _run_name() -> str:
    parameters = this_run.parameters
    return parameters.get("run_id") or default_run_id(parameters["preset"], this_run.id)


def stop_run(flow: Flow[Any, Any], flow_run: FlowRun, state: State) -> None:
    """On cancel: a process of its own stops the run, since the service ends its phase and writes a checkpoint first."""
    run = locate_run(flow_run.parameters, str(flow_run.id))
    if run.config_file.exists():
        start_stand_in(run, flow_run.id)


@flow(name="openclaw", flow_run_name=_run_name, persist_result=True, on_cancellation=[stop_run])
def openclaw(
    preset: form.Preset = "local-cpu",
    steps: form.Steps = None,
    run_id: str = "",
    cluster: str = "",
    model: str = "",
    simulator: str = "",
    judge_key: str = "",
    rollout: form.Rollout = None,
    loss: form.Loss = None,
    optimizer: form.Optimizer = None,
    train: form.Train = None,
    judge: form.Judge = None,
    feeder: form.Feeder = None,
    evaluation: form.Evaluation = None,
    health: form.Health = None,
    tracking: form.Tracking = None,
    ports: form.Ports = None,
    overrides: form.Overrides = None,
    dry_run: bool = False,
) -> State[Summary] | None:
    """Train online from conversations. A failed run leaves its cluster as it is, and a retry takes it up.

    Args:
        preset: Where all values come from that are not given here (docs/CONFIG.md has them).
        steps: Rollout steps, in place of the preset's.
        run_id: Directory below runs/; default: preset and flow run. An existing run is resumed.
        cluster: Name of an OpenClaw Cluster block, in place of the preset's hosts.
        model: Name of an OpenClaw Model block, in place of the preset's model.
        simulator: Name of an OpenClaw Simulator block, whose model plays the users.
        judge_key: Name of a Secret block with the key of a remote judge (judge.client openai).
        rollout: How answers are sampled and collected into batches. What is empty, here and below, is as the preset says.
        loss: The hybrid loss: weights, clips, candidates, Top-K.
        optimizer: AdamW and its schedule.
        train: The trainer: parallelism, checkpoints, deadlines.
        judge: Who judges the answers, and what is done where no verdict is to be had.
        feeder: The simulated people and their problems.
        evaluation: The held-out problems, and how convergence is counted.
        health: What is done when the metrics look ill (docs/HEALTH.md).
        tracking: Experiment trackers besides TensorBoard.
        ports: Every port that a run opens.
        overrides: Any other parameter by its dotted name, as in {"rollout.batch_size": 8}.
        dry_run: Show what would be done on every host, and do nothing.
    """
    log_to_prefect()
    if dry_run:
        show_dry_run(config_of(this_run.parameters), _run_name())
        return None
    run = open_run(this_run.parameters, this_run.id)
    await_last_attempt(run, this_run.id)
    close_left_open(this_run.id)
    try:
        with driving(run, str(this_run.id), ENDS):
            return _chain(run)
    except RunStopped as stopped:
        return Cancelled(message=str(stopped))


def _chain(run: RunDir) -> State[Summary]:
    run_dir = str(run.path)
    build_image(run_dir)
    distribute_image(run_dir)
    download_model(run_dir)
    convert_checkpoint(run_dir)
    with at_work_on_hosts(run, this_run.id):
        env_check(run_dir)
        launch_ray(run_dir)
        with feeding(run_dir) as switch:
            trained = train_loop(run_dir, switch)
        teardown(run_dir)
    return trained
