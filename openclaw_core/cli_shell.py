"""`openclaw-rl shell`: a shell inside the run's container on a host."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer


def shell(
    host: Annotated[str, typer.Argument(help="Name of the host, as in cluster.hosts.")],
    run: Annotated[str | None, typer.Option("--run", help="A run's id; default: the newest.")] = None,
    runs: Annotated[Path, typer.Option("--runs", help="Where runs are.")] = Path("runs"),
) -> None:
    """Open a shell in the container of Ray on a host. Needs the docker program there."""
    from openclaw_core.cluster.errors import ClusterError
    from openclaw_core.cluster.hosts import Hosts
    from openclaw_core.cluster.specs import ray_container
    from openclaw_core.rundir import existing_run, list_runs

    known = list_runs(runs)
    if run is None and not known:
        raise ClusterError(f"there is no run in {runs}")
    directory = existing_run(run, runs) if run is not None else known[-1]
    config = directory.config()
    if not config.cluster.containers:
        raise ClusterError(f"run {directory.run_id} has no containers: its processes are on this machine")
    # Not closed: this process becomes the ssh that uses them.
    target = Hosts(config.cluster).named(host)
    os.execvp("ssh", target.terminal("docker", "exec", "-it", ray_container(config, directory.run_id, target.config), *SHELL))


SHELL = ("sh", "-c", '[ -x /opt/openclaw/bin/entrypoint ] && exec /opt/openclaw/bin/entrypoint bash; exec "${SHELL:-bash}"')
"""The image's entry point sets the environment of CANN, which `docker exec` does without."""
