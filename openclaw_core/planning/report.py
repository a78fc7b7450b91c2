"""A plan for people (a table and a line per verdict) and for programs (JSON)."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from openclaw_core.planning.architecture import KNOWN
from openclaw_core.planning.disk import kept_checkpoints
from openclaw_core.planning.placement import Role
from openclaw_core.planning.plan import HEADROOM, Budget, Plan, Remedy
from openclaw_core.planning.weights import checkpoint_bytes, hf_parameters

_WIDTH = 128
"""Where there is no terminal that says its own."""


def print_plan(plan: Plan) -> None:
    """Show it on the terminal; a pipe or a file gets the same text."""
    Console(highlight=False, width=None if sys.stdout.isatty() else _WIDTH).print(render(plan))


def render(plan: Plan) -> RenderableType:
    """The whole report."""
    return Group(*_heading(plan), _memory_table(plan), _host_table(plan), *verdicts(plan))


def as_json(plan: Plan) -> dict[str, Any]:
    """Bytes, unrounded."""
    return {
        "preset": plan.config.preset,
        "model": plan.config.model.name,
        "architecture": asdict(plan.architecture.spec),
        "architecture_from": str(plan.architecture.source),
        "parameters": hf_parameters(plan.architecture.spec),
        "ranks": [
            {
                "role": rank.role.name,
                "tensor_parallel": rank.role.ranks,
                "hosts": rank.role.hosts,
                "cards": rank.role.cards,
                "held": rank.held,
                "phases": rank.phases,
                "aside": rank.aside,
                "total": rank.total,
            }
            for rank in plan.ranks
        ],
        "budgets": [
            {**asdict(budget), "needed": budget.needed, "headroom": budget.headroom, "fits": budget.fits}
            for budget in plan.budgets
        ],
        "hosts": [{**asdict(host), "total": host.total} for host in plan.hosts],
        "remedies": [asdict(remedy) for remedy in plan.remedies],
        "fits": plan.fits,
    }


def verdicts(plan: Plan) -> Iterator[Text]:
    """A line for every budget, and below one that fails its sum and what would help."""
    for budget in plan.budgets:
        word, style = ("fits", "green") if budget.fits else ("REFUSED", "bold red")
        yield Text(f"{word}: {_sentence(budget)}", style=style)
        if not budget.fits:
            yield Text(
                "  " + " + ".join(f"{name} {gb(size)}" for name, size in budget.parts.items()) + f" = {gb(budget.needed)}"
            )
    for remedy in plan.remedies:
        yield Text("  " + _advice(remedy))
    if not plan.fits and not any(remedy.fits for remedy in plan.remedies):
        yield Text("  None of these suffices alone: combine them, or use more devices.")


def gb(size: int | None) -> str:
    """Gigabytes (10^9 bytes) with one decimal; what is not known is '?'."""
    return "?" if size is None else f"{size / 1e9:,.1f}"


def _heading(plan: Plan) -> Iterator[Text]:
    config, spec = plan.config, plan.architecture.spec
    yield Text(
        f"{config.preset}: {config.model.name}, {hf_parameters(spec) / 1e9:.2f} billion parameters, {config.model.dtype}"
    )
    source = plan.architecture.source
    yield Text(f"architecture from {f'what the package knows of it, {source.name}' if source.parent == KNOWN else source}")
    for role in plan.placement.roles:
        hosts = ", ".join(f"{host} ({_devices(role, host)})" for host in dict.fromkeys(role.hosts))
        yield Text(f"{role.name}: {role.layout} on {hosts}")
    if plan.placement.scorer is None:
        yield Text("scorer: the trainer's ranks")
    if (judge := plan.placement.judge) is not None:
        hosts = ", ".join(f"{host} ({_devices(judge, host)})" for host in judge.hosts)
        counted = any(rank.role is judge for rank in plan.ranks)
        yield Text(
            f"judge: {judge.layout} on {hosts}{'' if counted else '; not counted, the sizes of its model are not known'}"
        )
    elif config.cluster.npus:
        yield Text(f"judge: {config.judge.client}, without NPUs of these hosts")


def _devices(role: Role, host: str) -> str:
    cards = role.cards_on(host)
    if len(cards) == 1:
        return f"NPU {cards[0]}"
    return f"NPUs {cards[0]} to {cards[-1]}" if cards else str(role.ranks_on(host))


def _memory_table(plan: Plan) -> Table:
    table = Table(title="Memory of one rank, GB", title_justify="left")
    table.add_column("")
    for rank in plan.ranks:
        table.add_column(f"{rank.role.name} rank", justify="right")

    def add(name: str, values: list[int | None], style: str = "", end: bool = False) -> None:
        table.add_row(name, *("" if value is None else gb(value) for value in values), style=style, end_section=end)

    held = dict.fromkeys(name for rank in plan.ranks for name in rank.held)
    for i, name in enumerate(held, 1):
        add(name, [rank.held.get(name) for rank in plan.ranks], end=i == len(held))
    for name in dict.fromkeys(name for rank in plan.ranks for name in rank.phases):
        add(f"in turn: {name}", [rank.phases.get(name) for rank in plan.ranks])
    asides = dict.fromkeys(name for rank in plan.ranks for name in rank.aside)
    for i, name in enumerate(asides, 1):
        add(f"  ({name})", [rank.aside.get(name) for rank in plan.ranks], style="dim", end=i == len(asides))
    add("sum, with the largest phase", [rank.total for rank in plan.ranks], style="bold")
    return table


def _host_table(plan: Plan) -> Table:
    spec, train = plan.architecture.spec, plan.config.train
    one = gb(checkpoint_bytes(spec, plan.config.model.dtype))
    title = (
        f"Disk that a host must have free, GB. {kept_checkpoints(train)} checkpoints of {one} over all hosts: "
        f"train.keep_last={train.keep_last}, one being written"
        + (f", and those of train.keep_every={train.keep_every}" if train.keep_every else "")
    )
    table = Table(title=title, title_justify="left")
    names = dict.fromkeys(name for host in plan.hosts for name in host.items)
    for name in ("host", *names, "sum", "host memory to write one"):
        table.add_column(name, justify="left" if name == "host" else "right")
    for host in plan.hosts:
        sizes = [gb(host.items[name]) if name in host.items else "" for name in names]
        unknown = " + ?" if None in host.items.values() else ""
        table.add_row(host.host, *sizes, gb(host.total) + unknown, gb(host.save_memory) if host.save_memory else "")
    return table


def _sentence(budget: Budget) -> str:
    return (
        f"{budget.name} needs {gb(budget.needed)} of {gb(budget.limit)} GB, headroom {budget.headroom:.0%} "
        f"({HEADROOM:.0%} is asked for)"
    )


def _advice(remedy: Remedy) -> str:
    settings = " ".join(f"--set {name}={str(value).lower()}" for name, value in remedy.settings.items())
    needed = ", ".join(f"{name} {gb(size)}" for name, size in remedy.needed.items())
    return f"{settings}: {needed}, {'fits' if remedy.fits else 'not enough alone'}"
