"""`openclaw-rl shell`: a shell inside the run's container on a host."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from openclaw_core.cli_options import RunsRoot, complete_run

if TYPE_CHECKING:
    from openclaw_core.cluster.hosts import Host

SHELL = ("sh", "-c", '[ -x /opt/openclaw/bin/entrypoint ] && exec /opt/openclaw/bin/entrypoint bash; exec "${SHELL:-bash}"')
"""The image's entry point sets the environment of CANN, which `docker exec` does without."""


def shell(
    host: Annotated[str, typer.Argument(metavar="HOST", help="Name of the host, as in cluster.hosts.")],
    run_id: Annotated[
        str | None, typer.Option(metavar="ID", help="A run's id; default: the newest.", autocompletion=complete_run)
    ] = None,
    runs: RunsRoot = Path("runs"),
) -> None:
    """Open a shell in a run's container on a host.

    In the container of Ray; the exit code is the shell's. Needs the docker program there.
    """
    from openclaw_core.cluster.errors import ClusterError
    from openclaw_core.cluster.hosts import Hosts
    from openclaw_core.cluster.specs import ray_container
    from openclaw_core.rundir import existing_run, list_runs

    known = list_runs(runs)
    if run_id is None and not known:
        raise ClusterError(f"there is no run in {runs}")
    directory = existing_run(run_id, runs) if run_id is not None else known[-1]
    config = directory.config()
    if not config.cluster.containers:
        raise ClusterError(f"run {directory.run_id} has no containers: its processes are on this machine")
    with Hosts(config.cluster) as hosts:
        target = hosts.named(host)
        container = ray_container(config, directory.run_id, target.config)
        _check_runs(target, directory.run_id, container)
        docker = ("docker", "-H", f"unix://{target.config.docker_socket}")
        # A child, not this process: the shared connection and its folder are put away when the shell has ended.
        ended = subprocess.run(target.terminal(*docker, "exec", "-it", container, *SHELL), check=False)
    raise typer.Exit(ended.returncode)


def _check_runs(host: Host, run_id: str, container: str) -> None:
    from openclaw_core.cluster.docker.containers import Engine
    from openclaw_core.cluster.errors import ClusterError

    with Engine(host) as engine:
        found = engine.of_run(run_id)
    state = next((each.state for each in found if each.name == container), "not there")
    if state != "running":
        others = ", ".join(f"{each.name} ({each.state})" for each in found if each.name != container) or "none"
        raise ClusterError(
            f"host {host.name}: container {container} of run {run_id} is {state}; other containers of the run there: {others}; "
            "the stage launch-ray starts it"
        )
