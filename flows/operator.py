"""`make up`, `make down`: Prefect on the launch machine of an operator, without a run of its own.

For a machine that is to keep it over restarts there are systemd units: ops/systemd/README.md.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterState, FlowRunFilterStateType
from prefect.client.schemas.objects import StateType
from prefect.settings import PREFECT_API_URL, temporary_settings

from blocks.cluster import save_cluster
from flows.command import State, console, run_app
from flows.local_prefect import HOME, LocalPrefect, stop_prefect
from flows.parameters import cluster_overrides
from openclaw_core.cluster.errors import ClusterError
from openclaw_core.cluster.init import cluster_from_environment, cluster_from_file
from openclaw_core.config import load_config
from openclaw_core.config.env import child_environment

UNDER_WAY = [StateType.RUNNING, StateType.PENDING, StateType.CANCELLING, StateType.PAUSED]

app = typer.Typer(help=__doc__, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


@app.command("up")
def up_command(
    port: Annotated[int | None, typer.Option(min=1, max=65535, help="Of Prefect's server; default: ports.prefect.")] = None,
    state: State = HOME / ".state",
) -> None:
    """Start server, worker and deployments; what is up already is kept. It returns when they are up."""
    config = load_config("local-cpu", {} if port is None else {"ports.prefect": port})
    prefect = LocalPrefect(state, config.ports.prefect)
    prefect.start(config)
    ssh = f"ssh -L {prefect.port}:127.0.0.1:{prefect.port}"
    console.print(f"Prefect is up: {prefect.ui}, on loopback alone; from elsewhere: {ssh}", soft_wrap=True)
    console.print(f"export PREFECT_API_URL={prefect.api}", soft_wrap=True)
    console.print("prefect deployment run openclaw/4b-2nodes -p cluster=NAME  # the next step: docs/RUNBOOK.md", soft_wrap=True)


@app.command("down")
def down_command(state: State = HOME / ".state") -> None:
    """End worker and server. Refused while flow runs are under way: their processes are the worker's."""
    prefect = LocalPrefect.recorded(state)
    if prefect is not None and prefect.healthy and (names := _under_way(prefect)):
        raise ClusterError(
            f"flow runs are under way: {', '.join(names)}; wait for them, cancel them in the UI "
            f"({prefect.ui}), or end all with `make stop`"
        )
    stopped = stop_prefect(state)
    console.print(f"stopped: {', '.join(stopped)}" if stopped else "nothing was running")


@app.command("keep-cluster")
def keep_cluster_command(
    name: Annotated[str, typer.Argument(help="Of the block.")],
    preset: Annotated[str, typer.Option(help="For what is not said.")] = "4b-2nodes",
    file: Annotated[Path | None, typer.Option(help="YAML of hosts; default: the environment.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="In place of a block of that name.")] = False,
) -> None:
    """What `openclaw-rl cluster init` does."""
    cluster = cluster_from_file(file, preset) if file is not None else cluster_from_environment(child_environment({}), preset)
    try:
        save_cluster(name, cluster, overwrite=overwrite)
    except ValueError as error:
        raise ClusterError(f"block {name!r} is not kept: {error}; another name, or --overwrite") from error
    hosts = ", ".join(f"{host.name} ({host.reached_at}: {', '.join(host.roles)})" for host in cluster.hosts)
    console.print(f"Cluster block {name}: {hosts}", soft_wrap=True)
    console.print(f"prefect deployment run openclaw/{preset} -p cluster={name}", soft_wrap=True)


@app.command("show-cluster")
def show_cluster_command(name: Annotated[str, typer.Argument(help="Of the block.")]) -> None:
    """The block as JSON, dotted name → value: for `openclaw-rl doctor --cluster` and `plan --cluster`."""
    print(json.dumps(cluster_overrides(name)))  # noqa: T201 - for a program, not for the console


def _under_way(prefect: LocalPrefect) -> list[str]:
    states = FlowRunFilterState(type=FlowRunFilterStateType(any_=UNDER_WAY))
    with temporary_settings({PREFECT_API_URL: prefect.api}), get_client(sync_client=True) as client:
        found = client.read_flow_runs(flow_run_filter=FlowRunFilter(state=states))
    return sorted(run.name for run in found if run.parent_task_run_id is None)


if __name__ == "__main__":
    run_app(app)
