"""Options that several commands share, what a shell completes in them, and the configuration that they ask for.

Every module of the command line is read before `--help` is answered: only typer and the standard library are imported at its
top, all else inside the commands.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from openclaw_core.cli_output import say

if TYPE_CHECKING:
    from openclaw_core.config import RunConfig

_PRESETS = Path(__file__).parent / "config" / "presets"


def presets() -> list[str]:
    """As ``config.preset_names``, which would bring in the whole configuration."""
    return sorted(file.stem for file in _PRESETS.glob("*.yaml"))


def _complete_preset(incomplete: str) -> list[str]:
    return [name for name in presets() if name.startswith(incomplete)]


def complete_run(ctx: typer.Context, incomplete: str) -> list[str]:
    from openclaw_core.rundir import list_runs

    runs = list_runs(ctx.params.get("runs") or Path("runs"))
    return [run.run_id for run in runs if run.run_id.startswith(incomplete)]


def _complete_assignment(incomplete: str) -> list[str]:
    from openclaw_core.config.load import parameter_names

    return [f"{name}=" for name in parameter_names() if name != "preset" and name.startswith(incomplete)]


RUN_HELP = "A run's id, its directory's name below --runs; or that directory."

Preset = Annotated[str, typer.Option(metavar="NAME", help=f"{', '.join(presets())}.", autocompletion=_complete_preset)]
Assignments = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        help="Override a parameter, as train.steps=5; repeatable. `openclaw-rl config` lists them.",
        autocompletion=_complete_assignment,
    ),
]
ClusterName = Annotated[
    str | None, typer.Option("--cluster", metavar="NAME", help="Cluster block of Prefect, in place of the preset's hosts.")
]
RunName = Annotated[str, typer.Argument(metavar="RUN", help=RUN_HELP, autocompletion=complete_run)]
RunNames = Annotated[list[str], typer.Argument(metavar="RUN", help=RUN_HELP, autocompletion=complete_run)]
AnyRunName = Annotated[
    str | None,
    typer.Argument(
        metavar="RUN",
        help=f"{RUN_HELP} Default: the one run that is alive, else the newest.",
        autocompletion=complete_run,
    ),
]
RunsRoot = Annotated[Path, typer.Option("--runs", metavar="DIR", help="Where runs are.")]
RunDirectory = Annotated[Path, typer.Option("--run-dir", metavar="DIR", help="The run's directory, runs/<run id>.")]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object on standard output, and nothing else there.")]


def asked_config(preset: str, assignments: list[str] | None, cluster: str | None = None) -> RunConfig:
    """Preset, environment, block, --set. What the environment says is shown beside the output, which stays as it is.

    Raises ConfigError, and BadParameter for a block that cannot be had.
    """
    from openclaw_core.config.env import load_asked
    from openclaw_core.config.load import parse_assignment

    block = _block(cluster) if cluster is not None else {}
    asked = load_asked(preset, block | dict(parse_assignment(text) for text in assignments or []))
    for line in asked.told:
        say(f"from the environment: {line}")
    return asked.config


def _block(name: str) -> dict[str, Any]:
    """A Cluster block of Prefect. A process of its own reads it: the core knows nothing of Prefect."""
    said = subprocess.run([sys.executable, "-m", "flows.operator", "show-cluster", name], stdout=subprocess.PIPE, check=False)
    if said.returncode:
        raise typer.BadParameter(said.stdout.decode(errors="replace").strip().removeprefix("error: "), param_hint="--cluster")
    return json.loads(said.stdout)
