"""openclaw-rl: train a language model online from live conversations.

`run` does the whole chain without Prefect; `serve` and `feed` are the processes that a run consists of. Exit codes: 0 done,
1 failed, 2 bad usage or configuration.
"""

# Heavy imports stay inside the commands, so that --help is quick.
from __future__ import annotations

import asyncio
import json
import logging
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from openclaw_core import cli_cluster, cli_evaluate, cli_feed, cli_keys, cli_shell, cli_stage, cli_turns
from openclaw_core.config import ConfigError
from openclaw_core.config.env import client_keys, external_keys, load_asked
from openclaw_core.config.load import parse_assignment
from openclaw_core.config.schema import RunConfig
from openclaw_core.errors import OpenClawError
from openclaw_core.log import configure_logging
from openclaw_core.rundir import RunDir, create_run, existing_run

if TYPE_CHECKING:
    from openclaw_core.cluster.host_checks import HostCheck
    from openclaw_core.stages import Row

app = typer.Typer(help=__doc__, no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None)
app.add_typer(cli_turns.app, name="turns")
app.add_typer(cli_keys.app, name="keys")
app.add_typer(cli_cluster.app, name="cluster")
app.command()(cli_evaluate.evaluate)
app.command()(cli_feed.feed)
app.command()(cli_stage.stage)
app.command()(cli_shell.shell)

Preset = Annotated[str, typer.Option(help="local-cpu, 2nodes-sim, 4b-1node, 4b-2nodes or 32b-8nodes.")]
Assignments = Annotated[
    list[str] | None, typer.Option("--set", help="Override a parameter, as in --set train.steps=5; repeatable.")
]
ClusterName = Annotated[str | None, typer.Option("--cluster", help="Cluster block of Prefect, in place of the preset's hosts.")]
RunDirectory = Annotated[Path, typer.Option("--run-dir", help="The run's directory, runs/<run id>.")]
RunName = Annotated[str, typer.Argument(metavar="RUN", help="A run's id, its directory's name below runs/; or that directory.")]
RunsRoot = Annotated[Path, typer.Option("--runs", help="Where runs are.")]


def main() -> None:
    """Entry point: errors that a person can mend are shown alone, everything else with its traceback."""
    try:
        app()
    except ConfigError as error:
        _fail(error, 2)
    except OpenClawError as error:
        _fail(error, 1)


@app.command()
def run(
    preset: Preset = "local-cpu",
    assignments: Assignments = None,
    run_id: Annotated[str | None, typer.Option(help="Default: <preset>-<time>. An existing one is resumed.")] = None,
) -> None:
    """Do the whole chain on this machine: download, convert, check, train, evaluate, export."""
    from openclaw_core.loop.summary import summary_rows
    from openclaw_core.run import run_all

    configure_logging()
    config = _config(preset, assignments)
    run_id = run_id or f"{preset}-{time.strftime('%Y%m%d-%H%M%S')}"
    run = create_run(config, run_id, external_keys(), client_keys())
    typer.echo(f"run {run.run_id} in {run.path}")
    summary = run_all(run.config(), run, typer.echo)
    for what, value in summary_rows(summary):
        typer.echo(f"{what}: {value}")


@app.command()
def serve(run_dir: RunDirectory) -> None:
    """The training service of a run: gateway, control API, loop. Started by `run` and by the flow as a Ray job."""
    from openclaw_core.loop.service import serve as serve_run

    configure_logging()
    asyncio.run(serve_run(RunDir(run_dir)))


@app.command()
def status(run: RunName, runs: RunsRoot = Path("runs"), as_json: Annotated[bool, typer.Option("--json")] = False) -> None:
    """What a run's service is doing, and what it waits for."""
    from openclaw_core.loop.client import ControlClient

    directory = existing_run(run, runs)
    with ControlClient.of(directory, directory.config()) as client:
        now = client.status(silence_s=2)
    if as_json:
        typer.echo(now.model_dump_json())
        return
    typer.echo(f"{now.run_id}: {now.state}, step {now.step} of {now.steps} done, version {now.version}")
    typer.echo(f"phase {now.phase or 'none'}; {now.waiting_for}")
    if now.advice:
        typer.echo(now.advice)
    if now.error:
        typer.echo(f"last error: {now.error}")


@app.command("export-hf")
def export_hf(
    run: RunName,
    out: Annotated[Path, typer.Option(help="Directory to write; it must not exist.")],
    step: Annotated[int | None, typer.Option(help="Checkpoint of this step; default: the newest.")] = None,
    runs: RunsRoot = Path("runs"),
) -> None:
    """Write a checkpoint's weights as a Hugging Face model."""
    from openclaw_core.trainer import retention
    from openclaw_core.weights.export import export_checkpoint
    from openclaw_core.weights.layout import hf_directory

    directory = existing_run(run, runs)
    root = directory.checkpoints
    checkpoint = retention.latest(root) if step is None else retention.step_directory(root, step)
    if checkpoint is None:
        raise retention.CheckpointError(f"run {run} has no checkpoint in {root} yet")
    result = export_checkpoint(checkpoint, hf_directory(directory.config()), out, lambda line: typer.echo(line, err=True))
    typer.echo(f"{result.path}: checksum {result.checksum}")


@app.command()
def stop(run: RunName, runs: RunsRoot = Path("runs")) -> None:
    """End a run: the service after its phase, with a checkpoint; then feeder and Ray, by recorded pid."""
    from openclaw_core.stages import teardown

    configure_logging()
    directory = existing_run(run, runs)
    typer.echo(teardown(directory.config(), directory)["detail"])


@app.command()
def doctor(
    preset: Preset = "local-cpu",
    assignments: Assignments = None,
    without: Annotated[
        list[str] | None,
        typer.Option(help="A check that is shown and not counted, as npu in an image that is being built; repeatable."),
    ] = None,
    image: Annotated[bool, typer.Option("--image", help="Inside the image: its packages, and nothing of a host.")] = False,
    sim: Annotated[bool, typer.Option("--sim", help="Whether this machine can simulate hosts.")] = False,
    cluster: ClusterName = None,
) -> None:
    """Check this machine for a preset, and the hosts of a preset that has some. Exit code 1 where something is not right."""
    here, on_hosts = _doctor_rows(preset, assignments, cluster, image=image, sim=sim)
    rows: list[Row] = [*here, *on_hosts]
    waived = set(without or [])
    for row in here:
        typer.echo(f"{row}{' (not counted)' if row.check in waived else ''}")
    if on_hosts:
        from openclaw_core.cluster.host_checks import print_table

        print_table(on_hosts, waived)
    if unknown := waived - {row.check for row in rows}:
        raise typer.BadParameter(f"no such check: {', '.join(sorted(unknown))}", param_hint="--without")
    if not all(row.ok or row.check in waived for row in rows):
        raise typer.Exit(1)


def _doctor_rows(
    preset: str, assignments: list[str] | None, cluster: str | None, *, image: bool, sim: bool
) -> tuple[Sequence[Row], Sequence[HostCheck]]:
    """Of this machine, and of the hosts."""
    from openclaw_core.cluster import checks

    if image:
        return checks.check_image(), []
    if sim:
        from openclaw_core.cluster.simulation import check_simulation

        return check_simulation(), []
    config = _config(preset, assignments, cluster)
    here = checks.check_machine(config, RunDir(config.paths.runs.absolute() / "doctor"))
    if not config.cluster.containers:
        return here, []
    from openclaw_core.cluster.host_checks import check_hosts
    from openclaw_core.cluster.hosts import Hosts

    configure_logging(logging.WARNING)  # standard output is for the rows
    with Hosts(config.cluster) as hosts:
        return here, check_hosts(config, "doctor", hosts)


@app.command()
def plan(
    preset: Preset = "local-cpu",
    assignments: Assignments = None,
    as_json: Annotated[bool, typer.Option("--json")] = False,
    dry: Annotated[bool, typer.Option("--dry-run", help="And all that a run would do on each host.")] = False,
    hosts: Annotated[list[str] | None, typer.Option("--hosts", help="With --dry-run: these alone; repeatable.")] = None,
    cluster: ClusterName = None,
) -> None:
    """What a preset needs: memory of every rank and engine, disk of every host. Exit code 1 where it does not fit."""
    from openclaw_core.cluster.dry_run import as_json as dry_json
    from openclaw_core.cluster.dry_run import dry_run
    from openclaw_core.cluster.dry_run.text import print_dry_run
    from openclaw_core.planning import make_plan, report

    made = make_plan(_config(preset, assignments, cluster))
    would = dry_run(made.config, f"{preset}-ID") if dry else None
    if would is not None and hosts:
        try:
            would = would.only(hosts)
        except KeyError as error:
            raise typer.BadParameter(f"no such host: {error}", param_hint="--hosts") from None
    if as_json:
        typer.echo(json.dumps(report.as_json(made) | ({"dry_run": dry_json(would)} if would is not None else {})))
    else:
        report.print_plan(made)
        if would is not None:
            print_dry_run(would)
    if not made.fits:
        raise typer.Exit(1)


@app.command()
def config(preset: Preset = "local-cpu", assignments: Assignments = None) -> None:
    """Print every parameter with its value, as --set takes them."""
    tree = _config(preset, assignments).model_dump(mode="json")

    def leaves(node: Any, prefix: str) -> None:
        if isinstance(node, dict):
            for key, value in node.items():
                leaves(value, f"{prefix}.{key}" if prefix else key)
        else:
            typer.echo(f"{prefix}={json.dumps(node)}")

    leaves(tree, "")


def _config(preset: str, assignments: list[str] | None, cluster: str | None = None) -> RunConfig:
    """Preset, environment, block, --set. What the environment says is shown beside the output, which stays as it is."""
    block = _block(cluster) if cluster is not None else {}
    asked = load_asked(preset, block | dict(parse_assignment(text) for text in assignments or []))
    for line in asked.told:
        typer.echo(f"from the environment: {line}", err=True)
    return asked.config


def _block(name: str) -> dict[str, Any]:
    """A Cluster block of Prefect. A process of its own reads it: the core knows nothing of Prefect."""
    said = subprocess.run([sys.executable, "-m", "flows.operator", "show-cluster", name], stdout=subprocess.PIPE, check=False)
    if said.returncode:
        typer.echo(said.stdout.decode(errors="replace").strip(), err=True)
        raise typer.Exit(said.returncode)
    return json.loads(said.stdout)


def _fail(error: OpenClawError, code: int) -> None:
    typer.echo(f"error: {error}", err=True)
    sys.exit(code)


if __name__ == "__main__":
    main()
