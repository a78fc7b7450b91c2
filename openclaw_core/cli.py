"""openclaw-rl: train a language model online from live conversations.

`run` does the whole chain without Prefect; `status`, `turns` and `report` show it; `doctor` and `plan` come before. RUN is
a run's id, and where it may be left out, the run that is alive or the newest.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from openclaw_core import (
    cli_checks,
    cli_cluster,
    cli_evaluate,
    cli_feed,
    cli_keys,
    cli_report,
    cli_service,
    cli_shell,
    cli_status,
    cli_turns,
)
from openclaw_core.cli_options import AsJson, Assignments, Preset, RunName, RunsRoot, asked_config, complete_run
from openclaw_core.cli_output import EXIT_CODES, examples, print_json, run_app, say

app = typer.Typer(help=__doc__, epilog=EXIT_CODES, no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None)


def main() -> None:
    """Entry point."""
    sys.exit(run_app(app))


def run(
    preset: Preset = "local-cpu",
    assignments: Assignments = None,
    run_id: Annotated[
        str | None,
        typer.Option(
            metavar="ID",
            help="Default: <preset>-<time>. A run that exists goes on, with the parameters that it began with.",
            autocompletion=complete_run,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Do the whole chain, and show its progress.

    Download, convert, check, train, evaluate, export. Progress goes to standard error, the summary to standard output.
    """
    from openclaw_core.config.env import client_keys, external_keys
    from openclaw_core.log import configure_logging
    from openclaw_core.loop.summary import summary_rows
    from openclaw_core.run import run_all
    from openclaw_core.rundir import create_run

    configure_logging()
    config = asked_config(preset, assignments)
    run_id = run_id or f"{preset}-{time.strftime('%Y%m%d-%H%M%S')}"
    run = create_run(config, run_id, external_keys(), client_keys())
    say(f"run {run.run_id} in {run.path}")
    summary = run_all(run.config(), run, say)
    if as_json:
        print_json(summary)
        return
    for what, value in summary_rows(summary):
        typer.echo(f"{what}: {value}")


def stop(run: RunName, runs: RunsRoot = Path("runs"), as_json: AsJson = False) -> None:
    """End a run and all its processes.

    The service ends its phase and writes a checkpoint first; then feeder and Ray end, by recorded pid. Whoever drives the run
    gives up: a flow run of Prefect's is Cancelled, and Retry goes on with it; a run of `openclaw-rl run` goes on with
    `--run-id RUN` and its parameters.
    """
    from openclaw_core.driver import ask_to_stop
    from openclaw_core.log import configure_logging
    from openclaw_core.rundir import existing_run
    from openclaw_core.stages import teardown

    configure_logging()
    directory = existing_run(run, runs)
    ask_to_stop(directory)
    ended = teardown(directory.config(), directory)
    if as_json:
        print_json({"run_id": directory.run_id, **ended})
    else:
        typer.echo(ended["detail"])


def export_hf(
    run: RunName,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Directory to write; it must not exist.")],
    step: Annotated[int | None, typer.Option(min=1, metavar="N", help="Checkpoint of this step; default: the newest.")] = None,
    runs: RunsRoot = Path("runs"),
    as_json: AsJson = False,
) -> None:
    """Write a checkpoint as a Hugging Face model."""
    from openclaw_core.rundir import existing_run
    from openclaw_core.trainer import retention
    from openclaw_core.weights.export import export_checkpoint
    from openclaw_core.weights.layout import hf_directory

    directory = existing_run(run, runs)
    root = directory.checkpoints
    checkpoint = retention.latest(root) if step is None else retention.step_directory(root, step)
    if checkpoint is None:
        raise retention.CheckpointError(f"run {run} has no checkpoint in {root} yet")
    result = export_checkpoint(checkpoint, hf_directory(directory.config()), out, say)
    if as_json:
        print_json({"path": str(result.path), "checkpoint": str(checkpoint), "checksum": result.checksum})
    else:
        typer.echo(f"{result.path}: checksum {result.checksum}")


# In the order in which `openclaw-rl --help` lists them.
app.command(epilog=examples("doctor", "doctor --preset 4b-2nodes --cluster prod --json"))(cli_checks.doctor)
app.command(epilog=examples("plan --preset 4b-2nodes", "plan --preset 4b-2nodes --dry-run"))(cli_checks.plan)
app.command(epilog=examples("config --preset 4b-2nodes", "config --set train.steps=5 --json"))(cli_checks.config)
app.command(epilog=examples("run --preset local-cpu", "run --run-id first --set train.steps=5"))(run)
app.command(epilog=examples("status", "status RUN --once", "status RUN --json"))(cli_status.status)
app.command(epilog=examples("report RUN", "report RUN --out first.html"))(cli_report.report)
app.command(epilog=examples("evaluate RUN --label halfway --against before", "evaluate RUN --sessions"))(cli_evaluate.evaluate)
app.command("export-hf", epilog=examples("export-hf RUN --out model", "export-hf RUN --step 40 --out model"))(export_hf)
app.command(epilog=examples("stop RUN"))(stop)
app.command(epilog=examples("feed --url http://127.0.0.1:30000/v1 --key-file key.txt"))(cli_feed.feed)
app.command(epilog=examples("shell train", "shell train --run-id RUN"))(cli_shell.shell)
app.command()(cli_service.serve)
app.command()(cli_service.stage)
app.add_typer(cli_turns.app, name="turns")
app.add_typer(cli_keys.app, name="keys")
app.add_typer(cli_cluster.app, name="cluster")

if __name__ == "__main__":
    main()
