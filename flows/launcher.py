"""`make run`, `make stop`, `make status`: Prefect on this machine, one run through it, and what a person sees of that."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import typer
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterState, FlowRunFilterStateType
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.settings import PREFECT_API_URL, temporary_settings
from prefect.states import Cancelling
from rich.text import Text

from flows.command import State, console, run_app
from flows.local_prefect import HOME, LocalPrefect, stop_prefect
from flows.parameters import default_run_id
from flows.stand_in import NAME as STAND_IN
from flows.watch import Watch, follow
from openclaw_core.cluster.errors import ClusterError
from openclaw_core.cluster.ports import RAY_PORTS, SERVICE_PORTS, check_ports
from openclaw_core.cluster.processes import Processes
from openclaw_core.cluster.ray_head import find_head, runs_up
from openclaw_core.config import RunConfig
from openclaw_core.config.env import load_asked
from openclaw_core.config.load import parse_assignment
from openclaw_core.driver import DriverNote, DriverState
from openclaw_core.loop.summary import read_summary, summary_rows
from openclaw_core.rundir import RunDir

CANCEL_DEADLINE_S = 120
STOP_DEADLINE_S = 600

app = typer.Typer(help=__doc__, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


@app.command("run")
def run_command(
    preset: Annotated[str, typer.Option(help="The deployment openclaw/<preset>.")] = "local-cpu",
    steps: Annotated[int | None, typer.Option(help="Rollout steps, in place of the preset's.")] = None,
    assignments: Annotated[list[str] | None, typer.Option("--set", help="name=value of any parameter; repeatable.")] = None,
    state: State = HOME / ".state",
) -> None:
    """Run a deployment to its end and show it. Exit codes: 0 trained, 1 failed, 2 bad parameters, 130 cancelled."""
    assigned = dict(parse_assignment(text) for text in assignments or [])
    asked = load_asked(preset, assigned | ({"train.steps": steps} if steps is not None else {}))
    for line in asked.told:
        console.print(f"From the environment: {line}", markup=False, soft_wrap=True)
    config = asked.config
    known = KnownRuns(state)
    _check_ports(config, known)
    prefect = LocalPrefect(state, config.ports.prefect)
    console.print(f"Prefect: starting, or taking what runs already; UI at {prefect.ui}")
    console.print(f"In another terminal: export PREFECT_API_URL={prefect.api}", soft_wrap=True)
    prefect.start(config)
    with temporary_settings({PREFECT_API_URL: prefect.api}), get_client(sync_client=True) as client:
        flow_run = _create_run(client, preset, steps, asked.overrides)
        run = RunDir(HOME / config.paths.runs / default_run_id(preset, str(flow_run.id)))
        known.add(run)
        console.print(f"Run {run.run_id}: {prefect.ui}/runs/flow-run/{flow_run.id}", soft_wrap=True)
        watch = Watch(client, flow_run.id, run, config)
        try:
            ended = follow(watch, console)
        except KeyboardInterrupt:
            _cancel(client, watch)
            raise typer.Exit(130) from None
        _tell_end(ended, watch, prefect)


@app.command("stop")
def stop_command(state: State = HOME / ".state") -> None:
    """End what `make run` started: runs that are going on, their Ray heads, the Prefect worker and server."""
    prefect = LocalPrefect.recorded(state)
    if prefect is not None and prefect.healthy:
        console.print("cancelling what is going on; services end their phase and write a checkpoint first", soft_wrap=True)
        with temporary_settings({PREFECT_API_URL: prefect.api}), get_client(sync_client=True) as client:
            _cancel_active(client)
    stopped = [*_stop_runs(KnownRuns(state)), *stop_prefect(state)]
    console.print(f"stopped: {', '.join(stopped)}" if stopped else "nothing was running")


@app.command("status")
def status_command(state: State = HOME / ".state") -> None:
    """What is running."""
    alive = [
        process
        for directory in (state / "processes", *(run.processes for run in KnownRuns(state).all()))
        for process in Processes(directory).alive()
    ]
    for process in alive:
        console.print(f"{process.name}: pid {process.pid}, log {process.log}", soft_wrap=True)
    if not alive:
        console.print("nothing is running")


class KnownRuns:
    """The run directories that were begun from here; `make stop` looks after them."""

    def __init__(self, state: Path) -> None:
        self._file = state / "run-directories"

    def all(self) -> list[RunDir]:
        """Those that still exist."""
        lines = self._file.read_text().splitlines() if self._file.exists() else []
        return [run for line in lines if (run := RunDir(Path(line))).config_file.exists()]

    def add(self, run: RunDir) -> None:
        """Remember it."""
        self._file.parent.mkdir(parents=True, exist_ok=True)
        with self._file.open("a") as file:
            file.write(f"{run.path}\n")


def _check_ports(config: RunConfig, known: KnownRuns) -> None:
    """Raise ClusterError for a taken port before anything is started; a run that was left up for a retry is named.

    For one that is at work the new run waits by itself, as a flow run that is begun elsewhere does (queueing.py). The ports of
    a run with hosts of its own are opened there: env-check looks at them.
    """
    if config.cluster.containers:
        return
    try:
        check_ports(config.ports, [*SERVICE_PORTS, *RAY_PORTS])
    except ClusterError as error:
        up = {*runs_up(HOME / config.paths.runs), *(run for run in known.all() if find_head(run) is not None)}
        names = ", ".join(sorted(run.run_id for run in up))
        if up and all(_is_driven(run) for run in up):
            held = f"This machine is held by run {names}; the new one waits for it. Ctrl-C cancels the new one alone."
            console.print(held, soft_wrap=True)
            return
        if up:
            raise ClusterError(
                f"run {names} is still up, left for a retry after a failure: Retry it in the UI, or end it with "
                f"`.venv/bin/openclaw-rl stop` and its name\n{error}"
            ) from None
        raise


def _is_driven(run: RunDir) -> bool:
    """Whether a flow run has its hosts, and gives them free at its end."""
    driver = DriverNote.read(run)
    at_it = (DriverState.WORKING, DriverState.SUSPENDED)
    return driver is not None and driver.flow_run is not None and driver.state in at_it and not driver.lost


def _create_run(client: SyncPrefectClient, preset: str, steps: int | None, overrides: dict[str, Any]) -> FlowRun:
    deployment = client.read_deployment_by_name(f"openclaw/{preset}")
    parameters: dict[str, Any] = {}
    if steps is not None:
        parameters["steps"] = steps
    if overrides:
        parameters["overrides"] = overrides
    return client.create_flow_run_from_deployment(deployment.id, parameters=parameters)


def _cancel(client: SyncPrefectClient, watch: Watch) -> None:
    """Cancel the run and wait until what it started has ended, too: the service finishes its phase first."""
    console.print("\ncancelling; the service ends its phase and writes a checkpoint")
    client.set_flow_run_state(watch.flow_run_id, Cancelling(message="cancelled by make run"))
    _wait_final(client, watch.flow_run_id)
    stopping = Processes(watch.run.processes).find(STAND_IN)
    if stopping is not None:
        stopping.wait(STOP_DEADLINE_S)
    console.print("cancelled")


def _cancel_active(client: SyncPrefectClient) -> None:
    active = FlowRunFilterStateType(any_=[StateType.RUNNING, StateType.PENDING, StateType.SCHEDULED, StateType.PAUSED])
    runs = client.read_flow_runs(flow_run_filter=FlowRunFilter(state=FlowRunFilterState(type=active)))
    for flow_run in runs:
        if flow_run.parent_task_run_id is None:
            client.set_flow_run_state(flow_run.id, Cancelling(message="cancelled by make stop"))
    for flow_run in runs:
        _wait_final(client, flow_run.id)


def _wait_final(client: SyncPrefectClient, flow_run_id: Any) -> None:
    end = time.monotonic() + CANCEL_DEADLINE_S
    while time.monotonic() < end:
        state = client.read_flow_run(flow_run_id).state
        if state is not None and state.is_final():
            return
        time.sleep(1)
    console.print(f"flow run {flow_run_id} is not cancelled after {CANCEL_DEADLINE_S} s; its process is ended with the worker")


def _stop_runs(known: KnownRuns) -> list[str]:
    from openclaw_core.stages import teardown

    stopped: list[str] = []
    for run in known.all():
        processes = Processes(run.processes)
        if not processes.alive():
            continue
        if (stopping := processes.find(STAND_IN)) is not None:
            stopping.wait(STOP_DEADLINE_S)
        console.print(f"ending run {run.run_id}")
        teardown(run.config(), run)
        stopped.append(f"run {run.run_id}")
    return stopped


def _tell_end(flow_run: FlowRun, watch: Watch, prefect: LocalPrefect) -> None:
    summary = read_summary(watch.run)
    page = f"{prefect.ui}/runs/flow-run/{flow_run.id}"
    if flow_run.state is not None and flow_run.state.is_completed() and summary is not None:
        for what, value in [*summary_rows(summary), ("UI", f"{page} (until make stop)")]:
            console.print(Text(f"{what:<20}", "bold"), value, markup=False, soft_wrap=True)
        return
    console.print(f"run {watch.run.run_id} ended {flow_run.state_name}", style="red")
    console.print(watch.failure(), markup=False, soft_wrap=True)
    console.print(
        f"More: {page} (Retry there keeps the finished stages), {watch.run.logs}; `make stop` ends it", soft_wrap=True
    )
    raise typer.Exit(1)


if __name__ == "__main__":
    run_app(app)
