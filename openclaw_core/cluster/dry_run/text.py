"""A dry run for people: host by host, stage by stage."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from typing import Any

from rich.console import Console
from rich.text import Text

from openclaw_core.cluster.dry_run.nouns import LAUNCH, Action, DryRun, HostLine

VERBS = {
    "command": "run",
    "container": "container",
    "copy": "bring",
    "file": "write",
    "image": "image",
    "look": "look at",
    "port": "listen on",
    "process": "start",
    "end": "end",
    "none": "note:",
}


def print_dry_run(dry: DryRun) -> None:
    """Show it on the terminal. Lines are not cut, so that they can be copied."""
    console = Console(highlight=False)
    for text, style in _lines(dry):
        console.print(Text(text, style=style if sys.stdout.isatty() else ""), soft_wrap=True)


def as_text(dry: DryRun) -> str:
    """The same as plain text."""
    return "\n".join(text for text, _ in _lines(dry)) + "\n"


def _lines(dry: DryRun) -> Iterator[tuple[str, str]]:
    """Text and style of each line."""
    yield f"{dry.preset}, run {dry.run_id}: what would be done. Nothing was started, and no host was asked.", "bold"
    if actions := dry.on(LAUNCH):
        yield "", ""
        yield LAUNCH, "bold cyan"
        yield from _stages(actions)
    for host in dry.hosts:
        yield "", ""
        yield from _host(host)
        yield from _stages(dry.on(host.name))


def _host(host: HostLine) -> Iterator[tuple[str, str]]:
    yield f"{host.name}: {', '.join(host.roles)}", "bold cyan"
    yield f"  {host.ssh}; Docker at {host.docker_socket}; keeps everything in {host.work_root}", ""
    if host.npus:
        yield f"  NPUs: {', '.join(f'{role} {cards}' for role, cards in host.npus.items())}", ""


def _stages(actions: tuple[Action, ...]) -> Iterator[tuple[str, str]]:
    stage = ""
    for action in actions:
        if action.stage != stage:
            stage = action.stage
            yield f"  {stage}", "bold"
        yield f"    {VERBS[action.kind]} {action.what}", ""
        for name, value in action.details.items():
            yield from ((f"      {line}", "dim") for line in _detail(name, value))


def _detail(name: str, value: Any) -> Iterator[str]:
    """A list has a line each, but for a command; what is empty is left out."""
    if name == "command":
        yield f"{name}: {shlex.join(value)}"
    elif isinstance(value, dict):
        yield from (f"{name.removesuffix('s')}: {key}={text}" for key, text in value.items())
    elif isinstance(value, list) and name != "npus":
        yield from (f"{name.removesuffix('s')}: {each}" for each in value)
    elif isinstance(value, list):
        yield f"{name}: {', '.join(map(str, value))}"
    elif value not in (None, ""):
        yield f"{name}: {value}"
