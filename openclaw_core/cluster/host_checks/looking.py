"""env-check on hosts: is every host of a cluster fit for the run, now? A row for each thing that was looked at.

Facts are gathered from all hosts at once (script, facts, inside), then judged by pure functions (rows, npu).
A host that cannot be reached is one red row, and the others are looked at all the same.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import sys
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import structlog
from rich.console import Console
from rich.table import Table
from rich.text import Text

from openclaw_core.cluster.copies.code import digest_on
from openclaw_core.cluster.docker.containers import Engine
from openclaw_core.cluster.docker.errors import engine_errors
from openclaw_core.cluster.host_checks import inside
from openclaw_core.cluster.host_checks.container import inside_spec
from openclaw_core.cluster.host_checks.facts import (
    Clock,
    EngineFacts,
    HostCheck,
    HostFacts,
    ImageFacts,
    Inside,
    Lost,
    Module,
    parse_facts,
)
from openclaw_core.cluster.host_checks.npu import inside_rows, npu_rows
from openclaw_core.cluster.host_checks.rows import Asked, host_rows
from openclaw_core.cluster.host_checks.script import ask, remove_token, tokens_on
from openclaw_core.cluster.hosts import Host, HostError, Hosts, Unreachable, on_each
from openclaw_core.cluster.npu import NPU_SMI, Npus, processes_by_pid
from openclaw_core.cluster.orphans import containers_of, holders, look_at
from openclaw_core.config.schema import RunConfig
from openclaw_core.errors import OpenClawError
from openclaw_core.planning.architecture import read_architecture
from openclaw_core.planning.disk import HostNeeds, host_needs
from openclaw_core.planning.errors import PlanError
from openclaw_core.planning.placement import Placement, place_ranks

__all__ = ["HostCheck", "check_hosts", "print_table", "table"]

log = structlog.get_logger(__name__)

ALL_HOSTS = "all hosts"
"""In place of a host's name."""
WIDTH = 160
"""Of the table where there is no terminal."""
INSIDE_DEADLINE_S = 180
"""For a container that counts NPUs: torch_npu alone takes many seconds from a cold disk."""
CLOCK_TRIES = 3
CLOCK_ENOUGH_S = 0.25
"""No further try once a clock is known so well."""


def check_hosts(
    config: RunConfig, run_id: str, hosts: Hosts, *, code: str | None = None, npu_smi: Sequence[str] = NPU_SMI
) -> list[HostCheck]:
    """Look at every host, all at once. Never raises for what it finds.

    Args:
        code: Digest of the project's code that must be on every host; None: nothing was pushed yet.
        npu_smi: Where npu-smi is looked for.

    Returns: rows host by host; one red row for all hosts where roles do not fit their NPUs, since what is asked of which host
        is then not known.
    """
    try:
        asked = make_asked(config, run_id, code)
    except PlanError as error:
        advice = "change roles, NPUs or ranks until `openclaw-rl plan` has a place for all; then the hosts are looked at"
        return [HostCheck(ALL_HOSTS, "placement", str(error), False, advice)]
    token = secrets.token_hex(6)
    try:
        looked = on_each(hosts.all, lambda host: _lost_or(host, lambda: _look(host, hosts, asked, token, npu_smi)))
        # All have left their file by now, so each can look for the others'.
        pairs = dict(zip(hosts.all, looked, strict=True))
        looked = on_each(hosts.all, lambda host: _lost_or(host, lambda: _with_shared(host, pairs[host], token)))
    finally:
        on_each(hosts.all, lambda host: _remove(host, token))
    return list(judge(looked, asked))


def judge(looked: Sequence[HostFacts | Lost], asked: Asked) -> Iterator[HostCheck]:
    """All rows, host by host. Pure."""
    everyone = [facts for facts in looked if isinstance(facts, HostFacts)]
    for facts in looked:
        if isinstance(facts, Lost):
            yield _lost_row(facts)
            continue
        yield from host_rows(facts, everyone, asked)
        yield from npu_rows(facts, asked)
        yield from inside_rows(facts, asked)


def _lost_row(lost: Lost) -> HostCheck:
    login = f"ssh -p {lost.config.port} {lost.config.user}@{lost.config.reached_at}"
    if lost.reached:
        return HostCheck(
            lost.name, "commands", lost.reason, False, f"try it there: {login}; then look at the host's shell and load"
        )
    return HostCheck(lost.name, "ssh", lost.reason, False, f"{login} must work from this machine without a question")


def print_table(rows: Sequence[HostCheck], not_counted: Collection[str] = ()) -> None:
    """Show ``table`` on the terminal, or as plain text where the output goes elsewhere."""
    Console(highlight=False, width=None if sys.stdout.isatty() else WIDTH).print(table(rows, not_counted))


def table(rows: Sequence[HostCheck], not_counted: Collection[str] = ()) -> Table:
    """Host by host, what is wrong in red and what deserves a look in yellow. ``not_counted``: checks that a person waived."""
    made = Table("host", "check", "ok", "found", "what to do", header_style="bold")
    previous = None
    for row in rows:
        if previous not in (None, row.host):
            made.add_section()
        style = "red" if not row.ok else "yellow" if row.advice else ""
        verdict = "yes" if row.ok else "not counted" if row.check in not_counted else "NO"
        # As text: what hosts say may hold what rich takes for markup.
        cells = ("" if row.host == previous else row.host, row.check, verdict, row.value, row.advice)
        made.add_row(*(Text(cell, style) for cell in cells))
        previous = row.host
    return made


def make_asked(config: RunConfig, run_id: str, code: str | None) -> Asked:
    """What the run asks of its hosts. Raises PlanError."""
    placement = place_ranks(config)
    return Asked(config, run_id, code, placement, _needs(config, placement))


def _needs(config: RunConfig, placement: Placement) -> dict[str, HostNeeds] | str:
    try:
        spec = read_architecture(config).spec
    except OpenClawError as error:
        return str(error)
    return {need.host: need for need in host_needs(config, spec, placement)}


def _lost_or(host: Host, look: Callable[[], HostFacts | Lost]) -> HostFacts | Lost:
    try:
        return look()
    except HostError as error:
        return Lost(host.config, str(error).removeprefix(f"host {host.name}: "), not isinstance(error, Unreachable))


def _look(host: Host, hosts: Hosts, asked: Asked, token: str, npu_smi: Sequence[str]) -> HostFacts:
    others = [other for other in hosts.all if other is not host]
    parts = ask(host, run_id=asked.run_id, model=asked.config.model.name, token=token, peers=others, npu_smi=npu_smi)
    clock = measure_clock(host)  # over the connection that is open by now
    try:
        facts = parse_facts(host.config, parts, clock, npu_smi)
    except (ValueError, KeyError, IndexError) as error:
        raise HostError(host.name, f"what it says of itself is not understood: {error!r}") from error
    if asked.code is not None:
        facts = replace(facts, code=digest_on(host, asked.code))
    return _with_engine(host, facts, asked)


def measure_clock(host: Host) -> Clock:
    """The tightest of some round trips. Raises HostError."""
    best = _clock_once(host)
    for _ in range(CLOCK_TRIES - 1):
        if best.error_s <= CLOCK_ENOUGH_S:
            break
        best = min(best, _clock_once(host), key=lambda clock: clock.error_s)
    return best


def _clock_once(host: Host) -> Clock:
    before = time.time()
    said = host.run("date", "+%s.%N").stdout.strip()
    after = time.time()
    seconds, _, fraction = said.partition(".")
    # Not every date knows %N; then the time is somewhere within that second.
    exact = fraction.isdigit()
    told = int(seconds) + (float(f"0.{fraction}") if exact else 0.5)
    return Clock(told - (before + after) / 2, (after - before) / 2 + (0 if exact else 0.5))


def _with_engine(host: Host, facts: HostFacts, asked: Asked) -> HostFacts:
    """What needs the host's Docker engine: itself, owners of processes, a container of the image."""
    pids = list(processes_by_pid(facts.npus.chips)) if isinstance(facts.npus, Npus) else []
    processes = look_at(host, pids)
    try:
        with Engine(host) as engine:
            containers = containers_of(engine)
            known = _engine_facts(engine, asked)
            inside = None if known.image is None else _inside(host, engine, asked)
    except HostError as error:
        reason = str(error).removeprefix(f"host {host.name}: ")
        facts = replace(facts, engine=reason)
        containers = {}
    else:
        facts = replace(facts, engine=known, inside=inside)
    return replace(facts, holders=holders(facts.npus, processes, containers)) if isinstance(facts.npus, Npus) else facts


def _engine_facts(engine: Engine, asked: Asked) -> EngineFacts:
    with engine_errors(engine.host.name, "its version cannot be asked"):
        version = str(engine.client.version()["Version"])
    assert asked.cluster.image is not None, "ClusterConfig refuses containers without an image"
    image = engine.image_id(asked.cluster.image)
    containers = (*engine.of_run(asked.run_id), *engine.foreign(asked.run_id))
    return EngineFacts(version, ImageFacts(*image) if image else None, containers)


def _inside(host: Host, engine: Engine, asked: Asked) -> Inside | str:
    """What a container finds, or why it could not be asked."""
    source = Path(inside.__file__).read_text(encoding="utf-8")
    spec = inside_spec(asked.config, asked.run_id, host.config, asked.code or "none", source)
    lines: list[str] = []
    try:
        engine.run_once(spec, lines.append, INSIDE_DEADLINE_S)
    except HostError as error:
        return str(error).removeprefix(f"host {host.name}: ")
    return parse_inside(lines)


def parse_inside(lines: Sequence[str]) -> Inside | str:
    """What the container printed; a string where its line is not among it."""
    line = next((line for line in lines if line.startswith(inside.MARK)), None)
    if line is None:
        return f"the container did not answer: {' '.join(lines)[-300:] or 'it said nothing'}"
    said = json.loads(line.removeprefix(inside.MARK))
    return Inside(**{**said, "modules": {name: Module(**found) for name, found in said["modules"].items()}})


def _with_shared(host: Host, facts: HostFacts | Lost, token: str) -> HostFacts | Lost:
    if isinstance(facts, Lost) or facts.disk.place != str(host.work_root):
        return facts
    return replace(facts, shared_with=tuple(name for name in tokens_on(host, token) if name != host.name))


def _remove(host: Host, token: str) -> None:
    with contextlib.suppress(HostError):  # it cannot be reached; the file is empty and says what it is
        remove_token(host, token)
