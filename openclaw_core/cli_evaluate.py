"""`openclaw-rl evaluate`: held-out problems, and sessions to convergence (docs/EVALUATION.md)."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Annotated

import typer

from openclaw_core.cli_options import AsJson, RunNames, RunsRoot
from openclaw_core.cli_output import print_json


def evaluate(
    run: RunNames,
    sessions: Annotated[
        bool, typer.Option("--sessions", help="Sessions to convergence, from ledgers: a run, a trial.")
    ] = False,
    follow: Annotated[bool, typer.Option("--follow", help="Ask seeds beside a run, each a trial, until it ends.")] = False,
    seeds: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="With --follow; default: the run's own setting.")
    ] = None,
    label: Annotated[
        str | None, typer.Option(metavar="NAME", help="Name of the held-out report; default: version-<served>.")
    ] = None,
    against: Annotated[
        str | None, typer.Option(metavar="NAME", help="Earlier report to compare with, as in --against before.")
    ] = None,
    runs: RunsRoot = Path("runs"),
    as_json: AsJson = False,
) -> None:
    """Ask a live run the held-out problems.

    Or count how many sessions people need until answers come as they want them (--sessions, --follow): docs/EVALUATION.md.
    """
    from openclaw_core.evaluation import commands
    from openclaw_core.evaluation.tables import print_table
    from openclaw_core.log import configure_logging
    from openclaw_core.rundir import existing_run

    configure_logging()
    _require_one_kind(sessions, follow, seeds, label, against)
    directories = [existing_run(name, runs) for name in run]
    if sessions:
        findings = commands.sessions(directories)
    elif len(directories) > 1:
        raise typer.BadParameter(f"{len(run)} runs are given; several go with --sessions only")
    elif follow:
        findings = commands.following(directories[0], seeds, (signal.SIGTERM, signal.SIGINT))
    else:
        findings = commands.held_out(directories[0], label, against)
    if as_json:
        print_json(findings.body)
        return
    for title, rows in findings.tables:
        print_table(title, rows)


def _require_one_kind(sessions: bool, follow: bool, seeds: int | None, label: str | None, against: str | None) -> None:
    """Options of the three kinds do not mix. Raises BadParameter."""
    if sessions and follow:
        raise typer.BadParameter("--sessions reads ledgers, --follow asks a live run: choose one")
    if seeds is not None and not follow:
        raise typer.BadParameter("--seeds goes with --follow")
    if (sessions or follow) and (label or against):
        raise typer.BadParameter("--label and --against are of the held-out problems: leave out --sessions and --follow")
