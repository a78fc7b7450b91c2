"""`openclaw-rl doctor`, `plan`, `config`: what can be known before a run is started."""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from openclaw_core.cli_options import AsJson, Assignments, ClusterName, Preset, asked_config
from openclaw_core.cli_output import ExitCode, print_json

if TYPE_CHECKING:
    from openclaw_core.cluster.checks import Check
    from openclaw_core.cluster.host_checks import HostCheck

CHECKS = (
    *("python", "packages", "people", "cores", "memory", "disk", "model", "model files", "context length", "chat template"),
    *("ports", "ssh", "clock", "docker", "work_root", "another run", "interface", "other hosts", "placement", "commands"),
    *("code", "image", "container", "CANN", "npu", "npu health", "npu memory", "npu processes", "driver", "torch_npu devices"),
)
"""What a shell completes after --without; packages and ports that are not right have rows of their own, by name."""


def _complete_check(incomplete: str) -> list[str]:
    return [name for name in CHECKS if name.startswith(incomplete) and " " not in name]  # bash would not quote it


def doctor(
    preset: Preset = "local-cpu",
    assignments: Assignments = None,
    without: Annotated[
        list[str] | None,
        typer.Option(
            metavar="CHECK",
            help="A check that is shown and not counted, as npu in an image that is being built; repeatable.",
            autocompletion=_complete_check,
        ),
    ] = None,
    image: Annotated[bool, typer.Option("--image", help="Inside the image: its packages, and nothing of a host.")] = False,
    sim: Annotated[bool, typer.Option("--sim", help="Whether this machine can simulate hosts.")] = False,
    cluster: ClusterName = None,
    as_json: AsJson = False,
) -> None:
    """Check this machine and hosts of a preset.

    A line a check, with advice where something is not right; then the exit code is 1.
    """
    here, on_hosts = _doctor_rows(preset, assignments, cluster, image=image, sim=sim)
    waived, rows = set(without or []), (*here, *on_hosts)
    if unknown := waived - {row.check for row in rows}:
        raise typer.BadParameter(f"no such check: {', '.join(sorted(unknown))}", param_hint="--without")
    fit = all(row.ok or row.check in waived for row in rows)
    if as_json:
        checks = [asdict(row) | {"counted": row.check not in waived} for row in rows]
        print_json({"preset": None if image or sim else preset, "fit": fit, "checks": checks})
    else:
        _print_rows(here, on_hosts, waived)
    if not fit:
        raise typer.Exit(ExitCode.FAILED)


def _print_rows(here: Sequence[Check], on_hosts: Sequence[HostCheck], waived: Collection[str]) -> None:
    for row in here:
        typer.echo(f"{row}{' (not counted)' if row.check in waived else ''}")
    if on_hosts:
        from openclaw_core.cluster.host_checks import print_table

        print_table(on_hosts, waived)


def _doctor_rows(
    preset: str, assignments: list[str] | None, cluster: str | None, *, image: bool, sim: bool
) -> tuple[Sequence[Check], Sequence[HostCheck]]:
    """Of this machine, and of the hosts."""
    from openclaw_core.cluster import checks

    if image:
        return checks.check_image(), []
    if sim:
        from openclaw_core.cluster.simulation import check_simulation

        return check_simulation(), []
    config = asked_config(preset, assignments, cluster)
    here = checks.check_machine(config)
    if not config.cluster.containers:
        return here, []
    from openclaw_core.cluster.host_checks import check_hosts
    from openclaw_core.cluster.hosts import Hosts
    from openclaw_core.log import configure_logging

    configure_logging(logging.WARNING)
    with Hosts(config.cluster) as hosts:
        return here, check_hosts(config, "doctor", hosts)


def plan(
    preset: Preset = "local-cpu",
    assignments: Assignments = None,
    dry: Annotated[bool, typer.Option("--dry-run", help="And all that a run would do on each host.")] = False,
    hosts: Annotated[
        list[str] | None, typer.Option("--hosts", metavar="HOST", help="With --dry-run: this one alone; repeatable.")
    ] = None,
    cluster: ClusterName = None,
    as_json: AsJson = False,
) -> None:
    """Count memory and disk that a preset needs.

    Memory of every rank and engine, disk of every host. Exit code 1 where it does not fit.
    """
    from openclaw_core.cluster.dry_run import as_json as dry_json
    from openclaw_core.cluster.dry_run import dry_run
    from openclaw_core.cluster.dry_run.text import print_dry_run
    from openclaw_core.planning import make_plan, report

    made = make_plan(asked_config(preset, assignments, cluster))
    would = dry_run(made.config, f"{preset}-ID") if dry else None
    if would is not None and hosts:
        try:
            would = would.only(hosts)
        except KeyError as error:
            raise typer.BadParameter(f"no such host: {error}", param_hint="--hosts") from None
    if as_json:
        print_json(report.as_json(made) | ({"dry_run": dry_json(would)} if would is not None else {}))
    else:
        report.print_plan(made)
        if would is not None:
            print_dry_run(would)
    if not made.fits:
        raise typer.Exit(ExitCode.FAILED)


def config(preset: Preset = "local-cpu", assignments: Assignments = None, as_json: AsJson = False) -> None:
    """List every parameter with its value.

    A line a parameter, as --set takes it; what each is for is in docs/CONFIG.md.
    """
    parameters = dict(_leaves(asked_config(preset, assignments).model_dump(mode="json"), ""))
    if as_json:
        print_json(parameters)
        return
    for name, value in parameters.items():
        typer.echo(f"{name}={json.dumps(value)}")


def _leaves(node: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    """Dotted names and values."""
    if not isinstance(node, dict):
        yield prefix, node
        return
    for key, value in node.items():
        yield from _leaves(value, f"{prefix}.{key}" if prefix else key)
