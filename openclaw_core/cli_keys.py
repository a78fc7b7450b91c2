"""`openclaw-rl keys`: who may use a run's gateway."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from openclaw_core.keys import add_key, remove_key
from openclaw_core.rundir import existing_run

app = typer.Typer(
    help="Keys of a run's gateway, by name. A gateway that is running knows of a change at once.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Run = Annotated[str, typer.Argument(metavar="RUN", help="A run's id, its directory's name below runs/; or that directory.")]
Name = Annotated[str, typer.Argument(metavar="NAME", help="Whose key it is: a person or a program.")]
Runs = Annotated[Path, typer.Option("--runs", help="Where runs are.")]


@app.command()
def add(run: Run, name: Name, runs: Runs = Path("runs")) -> None:
    """Make a key and print it. It is shown this once; secrets.json has it, readable by its owner only."""
    typer.echo(add_key(existing_run(run, runs), name))


@app.command("list")
def show(run: Run, runs: Runs = Path("runs")) -> None:
    """Names, and how each key ends."""
    for name, key in existing_run(run, runs).secrets().all_keys.items():
        typer.echo(f"{name}  …{key[-4:]}")


@app.command()
def remove(run: Run, name: Name, runs: Runs = Path("runs")) -> None:
    """Take a key back: its next request is refused."""
    remove_key(existing_run(run, runs), name)
    typer.echo(f"removed {name}")
