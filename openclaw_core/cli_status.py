"""`openclaw-rl status`: what a run is doing, redrawn while it does it."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from openclaw_core.cli_options import AnyRunName, AsJson, RunsRoot
from openclaw_core.cli_output import ExitCode, print_json, print_rich, say

if TYPE_CHECKING:
    from openclaw_core.rundir import RunDir
    from openclaw_core.status import Picture

PATIENCE_S = 2.0
"""How long one look waits for a service that does not answer."""


def status(
    run: AnyRunName = None,
    once: Annotated[bool, typer.Option("--once", help="One picture, also on a terminal.")] = False,
    every_s: Annotated[float, typer.Option("--every", min=0.2, metavar="S", help="Seconds between two pictures.")] = 1.0,
    runs: RunsRoot = Path("runs"),
    as_json: AsJson = False,
) -> None:
    """Watch what a run is doing and waits for.

    Stage, step, phase, batch, engines, judge, gateway, last metrics and health, redrawn until the run ends; Ctrl-C leaves it,
    and does nothing to the run. Where the output is no terminal, and with --once or --json, it is one picture.

    Exit code 3 where the run's service does not answer; then the picture says what is there.
    """
    from openclaw_core.loop.client import ControlClient
    from openclaw_core.status import look, render

    directory = _run(run, runs)
    config = directory.config()
    live = sys.stdout.isatty() and not (once or as_json)
    with ControlClient.of(directory, config) as client:
        picture = look(directory, config, client, PATIENCE_S)
        if as_json:
            print_json(picture.as_json())
        elif live and not picture.ended:
            picture = _watch(picture, lambda: look(directory, config, client), every_s)
        else:
            print_rich(render(picture))
    if picture.service is None and not (live and picture.state == "finished"):
        raise typer.Exit(ExitCode.NO_SERVICE)


def _run(name: str | None, runs: Path) -> RunDir:
    """The run of that name, else the one that is alive, else the newest. Raises RunDirError."""
    from openclaw_core.rundir import RunDirError, existing_run, list_runs
    from openclaw_core.status.picture import running_or_newest

    if name is not None:
        return existing_run(name, runs)
    known = list_runs(runs)
    if not known:
        raise RunDirError(f"there is no run in {runs}; `openclaw-rl run` starts one")
    run, why = running_or_newest(known)
    say(f"run {run.run_id}: {why}")
    return run


def _watch(first: Picture, look_again: Callable[[], Picture], every_s: float) -> Picture:
    """Redraw until the run has ended or a person has seen enough. Returns the last picture."""
    from rich.console import Console
    from rich.live import Live

    from openclaw_core.status import render

    picture, console = first, Console(markup=False, highlight=False, emoji=False)
    with Live(render(picture), console=console, auto_refresh=False) as live:
        try:
            while not picture.ended:
                time.sleep(every_s)
                picture = look_again()
                live.update(render(picture), refresh=True)
        except KeyboardInterrupt:
            pass
    return picture
