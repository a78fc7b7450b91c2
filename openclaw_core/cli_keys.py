"""`openclaw-rl keys`: who may use a run's gateway."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from openclaw_core.cli_options import AsJson, RunName, RunsRoot
from openclaw_core.cli_output import examples, print_json

app = typer.Typer(
    help="Manage keys of a run's gateway.\n\nEach has a name. A gateway that is running knows of a change at once.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Name = Annotated[str, typer.Argument(metavar="NAME", help="Whose key it is: a person or a program.")]


@app.command(epilog=examples("keys add RUN ana"))
def add(run: RunName, name: Name, runs: RunsRoot = Path("runs"), as_json: AsJson = False) -> None:
    """Make a key and print it.

    It is shown this once; secrets.json has it, readable by its owner only.
    """
    from openclaw_core.keys import add_key
    from openclaw_core.rundir import existing_run

    key = add_key(existing_run(run, runs), name)
    if as_json:
        print_json({"name": name, "key": key})
    else:
        typer.echo(key)


@app.command("list", epilog=examples("keys list RUN"))
def show(run: RunName, runs: RunsRoot = Path("runs"), as_json: AsJson = False) -> None:
    """List names, and how each key ends."""
    from openclaw_core.rundir import existing_run

    ends = {name: key[-4:] for name, key in existing_run(run, runs).secrets().all_keys.items()}
    if as_json:
        print_json({"keys": [{"name": name, "ends": end} for name, end in ends.items()]})
        return
    for name, end in ends.items():
        typer.echo(f"{name}  …{end}")


@app.command(epilog=examples("keys remove RUN ana"))
def remove(run: RunName, name: Name, runs: RunsRoot = Path("runs"), as_json: AsJson = False) -> None:
    """Take a key back.

    Its next request is refused.
    """
    from openclaw_core.keys import remove_key
    from openclaw_core.rundir import existing_run

    remove_key(existing_run(run, runs), name)
    if as_json:
        print_json({"removed": name})
    else:
        typer.echo(f"removed {name}")
