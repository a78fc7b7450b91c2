"""What the commands of the launch machine share: the console, where Prefect's files are, and how errors are told."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from openclaw_core.config import ConfigError
from openclaw_core.errors import OpenClawError
from openclaw_core.log import configure_logging

console = Console(highlight=False)

State = Annotated[Path, typer.Option(help="Where Prefect's database, logs and process records are kept.")]


def run_app(app: typer.Typer) -> None:
    """Known errors are one message and an exit code, 2 for bad parameters and else 1; everything else is a traceback."""
    configure_logging(logging.WARNING)
    try:
        app()
    except OpenClawError as error:
        console.print(f"error: {error}", markup=False, soft_wrap=True)
        sys.exit(2 if isinstance(error, ConfigError) else 1)
