"""`openclaw-rl cluster`: hosts of a run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from openclaw_core.cluster.errors import ClusterError
from openclaw_core.cluster.simulation.state import NAMES
from openclaw_core.log import configure_logging

if TYPE_CHECKING:
    from openclaw_core.cluster.simulation import HostState, Simulation

app = typer.Typer(help="Hosts of a run.", no_args_is_help=True, rich_markup_mode=None)
sim = typer.Typer(
    help="Hosts simulated on this machine: network, SSH servers and Docker engines are real and their own, all else is shared.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.add_typer(sim, name="sim")


@app.command()
def init(
    name: Annotated[str, typer.Argument(help="Of the block: lower-case letters, digits and '-'.")],
    preset: Annotated[
        str, typer.Option(help="What the file, or the environment, does not say is as in this preset.")
    ] = "4b-2nodes",
    file: Annotated[
        Path | None, typer.Option(help="YAML of hosts; default: MASTER_ADDR, PRM_NODE, WORK_ROOT, PRM_GPUS.")
    ] = None,
    overwrite: Annotated[bool, typer.Option(help="In place of a block of that name.")] = False,
) -> None:
    """Keep the hosts of a run as a Cluster block of Prefect (PREFECT_API_URL); a deployment then needs its name alone."""
    # A process of its own: the core knows nothing of Prefect, and the block is its.
    command = [sys.executable, "-m", "flows.operator", "keep-cluster", name, "--preset", preset]
    command += ["--file", str(file)] if file is not None else []
    command += ["--overwrite"] if overwrite else []
    raise typer.Exit(subprocess.run(command, check=False).returncode)


Directory = Annotated[Path, typer.Argument(metavar="DIR", help="Where the simulation is kept. Short, as /tmp/sim.")]


@sim.command()
def up(
    directory: Directory,
    names: Annotated[str, typer.Option(help="Of the hosts, with commas between; the first is the head.")] = ",".join(NAMES),
) -> None:
    """Make the hosts, leave them running, and print how to reach them. DIR must be new or empty."""
    from openclaw_core.cluster.simulation import Simulation, lacks

    configure_logging()
    if missing := lacks():
        raise ClusterError("this machine cannot simulate hosts:\n" + "\n".join(map(str, missing)))
    _show(Simulation.up(directory, [name.strip() for name in names.split(",")]))


@sim.command()
def down(directory: Directory) -> None:
    """Take the hosts down and remove DIR; also what an `up` that was killed has left."""
    from openclaw_core.cluster.simulation import Simulation

    configure_logging()
    Simulation.load(directory).down()
    typer.echo(f"{directory}: taken down")


@sim.command()
def status(directory: Directory, as_json: Annotated[bool, typer.Option("--json")] = False) -> None:
    """Each host: network, SSH server, engine and containers. Exit code 1 where something is not up."""
    from openclaw_core.cluster.simulation import Simulation

    configure_logging()
    states = Simulation.load(directory).status()
    if as_json:
        typer.echo(json.dumps([state.as_json() for state in states]))
    else:
        for state in states:
            typer.echo(_line(state))
    if not all(state.whole for state in states):
        raise typer.Exit(1)


def _line(state: HostState) -> str:
    containers = f"{len(state.containers)} containers run" + "".join(f" {name}" for name in state.containers)
    return (
        f"{state.name}  {state.address}  network {state.network}, ssh {'up' if state.ssh else 'down'}, "
        f"engine {f'up, {containers}' if state.engine else 'down'}"
    )


def _show(simulation: Simulation) -> None:
    state = simulation.state
    for host in state.hosts:
        typer.echo(f"{host.name}  {host.address}  {', '.join(host.roles)}")
        typer.echo(f"  ssh -F {state.ssh_config} {host.name}")
        typer.echo(f"  docker -H unix://{host.socket} ps")
    hosts = [host.model_dump(mode="json", exclude_defaults=True) for host in simulation.hosts]
    typer.echo("as parameters of a run:")
    typer.echo(f"  --set 'cluster.hosts={json.dumps(hosts)}'")
    typer.echo(f"  --set cluster.ssh.key={state.key} --set cluster.ssh.known_hosts={state.known_hosts}")
    typer.echo(f"take down: openclaw-rl cluster sim down {state.directory}")
