"""`openclaw-rl stage`: one stage of a run, inside a container on a host. The launch machine starts it (cluster/models.py)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from openclaw_core.config import RunConfig
    from openclaw_core.stages import StageResult


def stage(
    name: Annotated[str, typer.Argument(help="download-model or convert-checkpoint.")],
    run_dir: Annotated[Path, typer.Option("--run-dir", help="The run's directory, as this container sees it.")],
) -> None:
    """Do one stage of a run here, inside a container on a host of the cluster."""
    from openclaw_core.log import configure_logging
    from openclaw_core.rundir import RunDir

    configure_logging()
    result = _stage(name)(RunDir(run_dir).config())
    typer.echo(f"{result['stage']} {result['status']}: {result['detail']}")


def _stage(name: str) -> Callable[[RunConfig], StageResult]:
    from openclaw_core import stages  # brings in the whole project, which --help does not need

    here = {"download-model": stages.download_here, "convert-checkpoint": stages.convert_here}
    if name not in here:
        raise typer.BadParameter(f"{name!r} is no stage that a host does by itself; those are {', '.join(here)}")
    return here[name]
