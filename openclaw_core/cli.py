"""`openclaw-rl`: the same system without Prefect, and the entry points of its processes.

Heavy imports stay inside the commands, so that --help is quick. Exit codes: 0 done, 1 failed, 2 bad usage or configuration.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

app = typer.Typer(help=__doc__, no_args_is_help=True, pretty_exceptions_enable=False, add_completion=True)

Preset = Annotated[str, typer.Option(help="Preset: local-cpu, 4b-2nodes or 32b-8nodes.")]
Assignments = Annotated[list[str] | None, typer.Option("--set", help="Override a parameter, as in --set train.steps=5; repeatable.")]
Run = Annotated[Path, typer.Option("--run-dir", help="The run's directory, as in runs/<run id>.")]


def main() -> None:
    """Entry point: known errors are one line on stderr and exit code 1 or 2, everything else a traceback."""
    from openclaw_core.config import ConfigError
    from openclaw_core.errors import known_errors

    try:
        app()
    except ConfigError as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(2)
    except known_errors() as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(1)
