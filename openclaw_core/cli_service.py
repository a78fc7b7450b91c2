"""`openclaw-rl serve`, `stage`: processes that a run starts by itself, here, as a Ray job or in a container on a host."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from openclaw_core.cli_options import AsJson, RunDirectory
from openclaw_core.cli_output import print_json

if TYPE_CHECKING:
    from openclaw_core.config import RunConfig
    from openclaw_core.stages import StageResult

STAGES = ("download-model", "convert-checkpoint")


def serve(run_dir: RunDirectory) -> None:
    """Be the training service of a run.

    Gateway, control API and loop, until it is told to stop. `run` and the flow start it, as a Ray job.
    """
    import asyncio

    from openclaw_core.log import configure_logging
    from openclaw_core.loop.service import serve as serve_run
    from openclaw_core.rundir import RunDir

    configure_logging()
    asyncio.run(serve_run(RunDir(run_dir)))


def _complete_stage(incomplete: str) -> list[str]:
    return [name for name in STAGES if name.startswith(incomplete)]


def stage(
    name: Annotated[str, typer.Argument(metavar="STAGE", help=f"{' or '.join(STAGES)}.", autocompletion=_complete_stage)],
    run_dir: RunDirectory,
    as_json: AsJson = False,
) -> None:
    """Do one stage of a run here.

    Inside a container on a host of the cluster; the launch machine starts it.
    """
    from openclaw_core.log import configure_logging
    from openclaw_core.rundir import RunDir

    configure_logging()
    result = _stage(name)(RunDir(run_dir).config())
    if as_json:
        print_json(result)
    else:
        typer.echo(f"{result['stage']} {result['status']}: {result['detail']}")


def _stage(name: str) -> Callable[[RunConfig], StageResult]:
    from openclaw_core import stages  # brings in the whole project

    if name not in STAGES:
        raise typer.BadParameter(f"{name!r} is no stage that a host does by itself; those are {', '.join(STAGES)}")
    return {"download-model": stages.download_here, "convert-checkpoint": stages.convert_here}[name]
