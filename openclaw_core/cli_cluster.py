"""`openclaw-rl cluster`: hosts of a run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from openclaw_core.cli_options import AsJson, Preset
from openclaw_core.cli_output import ExitCode, examples, print_json

if TYPE_CHECKING:
    from openclaw_core.cluster.simulation import HostState, Simulation

app = typer.Typer(help="Keep or simulate hosts of a run.", no_args_is_help=True, rich_markup_mode=None)
sim = typer.Typer(
    help="Simulate hosts on this machine.\n\nNetwork, SSH servers and Docker engines are real, all else is shared.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.add_typer(sim, name="sim")


@app.command(epilog=examples("cluster init prod --preset 4b-2nodes --file hosts.yaml"))
def init(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Of the block: lower-case letters, digits and '-'.")],
    preset: Preset = "4b-2nodes",
    file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="YAML of hosts; default: MASTER_ADDR, PRM_NODE, WORK_ROOT, PRM_GPUS.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="In place of a block of that name.")] = False,
) -> None:
    """Keep hosts as a Cluster block of Prefect.

    Of the Prefect at PREFECT_API_URL; a deployment then needs the block's name alone. What the file, or the environment, does
    not say is as in the preset.
    """
    # A process of its own: the core knows nothing of Prefect, and the block is its.
    command = [sys.executable, "-m", "flows.operator", "keep-cluster", name, "--preset", preset]
    command += ["--file", str(file)] if file is not None else []
    command += ["--overwrite"] if overwrite else []
    raise typer.Exit(subprocess.run(command, check=False).returncode)


Directory = Annotated[Path, typer.Argument(metavar="DIR", help="Where the simulation is kept. Short, as /tmp/sim.")]


@sim.command(epilog=examples("cluster sim up /tmp/sim"))
def up(
    directory: Directory,
    names: Annotated[
        str | None,
        typer.Option(metavar="NAMES", help="Of the hosts, as node-a,node-b, which is the default; the first is the head."),
    ] = None,
) -> None:
    """Make hosts, and print how to reach them.

    They are left running. DIR must be new or empty.
    """
    from openclaw_core.cluster.errors import ClusterError
    from openclaw_core.cluster.simulation import NAMES, Simulation, lacks
    from openclaw_core.log import configure_logging

    configure_logging()
    if missing := lacks():
        raise ClusterError("this machine cannot simulate hosts:\n" + "\n".join(map(str, missing)))
    _show(Simulation.up(directory, NAMES if names is None else [name.strip() for name in names.split(",")]))


@sim.command(epilog=examples("cluster sim down /tmp/sim"))
def down(directory: Directory) -> None:
    """Take hosts down and remove DIR.

    Also what an `up` that was killed has left.
    """
    from openclaw_core.cluster.simulation import Simulation
    from openclaw_core.log import configure_logging

    configure_logging()
    Simulation.load(directory).down()
    typer.echo(f"{directory}: taken down")


@sim.command(epilog=examples("cluster sim status /tmp/sim"))
def status(directory: Directory, as_json: AsJson = False) -> None:
    """Look at each host.

    Network, SSH server, engine and containers. Exit code 1 where something is not up.
    """
    from openclaw_core.cluster.simulation import Simulation
    from openclaw_core.log import configure_logging

    configure_logging()
    states = Simulation.load(directory).status()
    if as_json:
        print_json({"hosts": [state.as_json() for state in states]})
    else:
        for state in states:
            typer.echo(_line(state))
    if not all(state.whole for state in states):
        raise typer.Exit(ExitCode.FAILED)


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
