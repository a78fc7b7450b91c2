"""`openclaw-rl report`: the report of a run, out of the files of its directory."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from openclaw_core.cli_options import AsJson, RunName, RunsRoot
from openclaw_core.cli_output import print_json


def report(
    run: RunName,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write it there; default: report.html in the run's directory.")
    ] = None,
    runs: RunsRoot = Path("runs"),
    as_json: AsJson = False,
) -> None:
    """Write the report of a run as one HTML file.

    Summary, health, plots, held-out answers before and after, samples, judge, configuration. Needs no service: a run that is
    alive, has failed or was stopped has one as far as it came.
    """
    from openclaw_core.rundir import RunDirError, existing_run
    from openclaw_core.tracking.packages import require_report_packages

    require_report_packages()
    from openclaw_core.report.gather import gather
    from openclaw_core.report.page import write_page

    directory = existing_run(run, runs)
    record = gather(directory)
    try:
        path = write_page(record, out or directory.report_file)
    except OSError as error:
        raise RunDirError(f"{error.filename}: cannot be written ({error.strerror})") from error
    if as_json:
        steps = {"steps": len(record.rows), "of": record.config.train.steps}
        state = {"health": str(record.health.state), "summary": record.summary}
        print_json({"run_id": record.run_id, "path": str(path), **steps, **state})
    else:
        typer.echo(path)
