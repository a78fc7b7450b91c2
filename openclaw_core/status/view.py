"""A picture of a run as a person sees it: a label and its words a line, on any width."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from openclaw_core.driver import DriverNote, DriverState
from openclaw_core.inspection.text import printable
from openclaw_core.loop import PHASES
from openclaw_core.loop.client import BatchStatus, EngineStatus, HealthStatus, JudgeStatus, ServiceStatus
from openclaw_core.status.picture import Picture, RunState

if TYPE_CHECKING:
    from openclaw_core.loop.summary import Summary

Line = tuple[str, RenderableType]

_BAR_WIDTH = 32
_STATE_STYLES = {
    RunState.RUNNING: "green",
    RunState.SUSPENDED: "yellow",
    RunState.STARTING: "yellow",
    RunState.SILENT: "yellow",
    RunState.FINISHED: "green",
    RunState.FAILED: "red",
    RunState.STOPPED: "red",
    RunState.NEW: "yellow",
}
_HEALTH_STYLES = {"healthy": "green", "warn": "yellow", "stop": "red"}
_METRICS = (
    ("rollout/reward_mean", "reward {:+.2f}"),
    ("rollout/satisfied_share", "satisfied {:.2f}"),
    ("train/grad_norm", "grad norm {:.2f}"),
    ("train/opd_abs_mean", "OPD |A| {:.2f}"),
    ("perf/tokens_per_s", "{:.0f} tokens/s"),
    ("perf/step_time", "{:.1f} s"),
)


def render(picture: Picture) -> RenderableType:
    """The whole picture."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for label, words in _lines(picture):
        grid.add_row(label, words)
    if picture.log is None:
        return grid
    log = Text("\n".join(printable(line) for line in picture.log.lines), "dim", overflow="fold")
    return Group(grid, Text(f"last lines of {picture.log.file}", "dim", overflow="fold"), log)


def _lines(picture: Picture) -> Iterator[Line]:
    yield "run", _title(picture)
    if picture.driver is not None and (words := _driver(picture.driver)):
        yield "driver", words
    if picture.service is not None:
        yield from _service_lines(picture, picture.service)
    elif picture.state is not RunState.FINISHED:
        yield "service", Text(picture.silence)
        yield from _last_step(picture)
    if picture.summary is not None:
        yield from _summary(picture.summary)
    if not picture.service and picture.processes:
        yield "alive here", Text(", ".join(f"{each.name} (pid {each.pid})" for each in picture.processes))
    if picture.advice:
        yield "advice", Text(picture.advice)


def _title(picture: Picture) -> Text:
    words = [f"step {picture.step} of {picture.steps} done"]
    service = picture.service
    if service is not None and service.serving and service.state != "finished":
        words = [f"step {service.next_step} of {service.steps}"]
        if service.eta_s is not None and picture.driven:
            words.append(f"about {_duration(service.eta_s)} left")
    title = Text.assemble((picture.run.run_id, "bold"), "  ", (picture.state.value, _STATE_STYLES[picture.state]))
    return title.append("  " + ", ".join([picture.stage, *words] if picture.stage else words))


def _driver(driver: DriverNote) -> Text | None:
    """What whoever drives it said last; nothing where that is at work or done, as is to be expected."""
    if driver.lost:
        return Text(f"{driver.who} has ended without a word (pid {driver.pid})", "red")
    if driver.state in (DriverState.WORKING, DriverState.DONE):
        return None
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(driver.at))
    said = f"{driver.who}: {driver.state.value} at {when}"
    return Text(f"{said}: {driver.reason}", "red") if driver.reason else Text(said, "yellow")


def _summary(summary: Summary) -> Iterator[Line]:
    from openclaw_core.loop.summary import summary_rows  # brings in the evaluations

    yield from ((what, Text(value)) for what, value in summary_rows(summary)[1:])


def _service_lines(picture: Picture, service: ServiceStatus) -> Iterator[Line]:
    if not service.serving:
        yield "waits for", Text(service.waiting_for)
    else:
        yield "phase", _phases(service.phase)
        yield "batch", _batch(service.batch)
        yield "turns", _turns(service.batch)
        yield "gateway", Text(_gateway(service))
        yield "engines", _engines(service.engines)
        yield "judge", _judge(service.judge, service.batch.judging)
        yield from _last_step(picture)
        yield "health", _health(service.health)
    if service.error is not None:
        yield "error", Text(service.error, "red")


def _phases(current: str | None) -> Text:
    """All of them, the current one marked."""
    if current is None:
        return Text("between two phases")
    return Text("  ").join(Text(f"[{name}]", "bold") if name == current else Text(name, "dim") for name in PHASES)


def _batch(batch: BatchStatus) -> RenderableType:
    row = Table.grid(padding=(0, 1))
    row.add_row(
        ProgressBar(batch.size, batch.ready, width=_BAR_WIDTH, complete_style="green", finished_style="green"),
        Text(f"{batch.ready} of {batch.size} turns"),
    )
    return row


def _turns(batch: BatchStatus) -> Text:
    """What those that the batch lacks wait for."""
    waits = {
        "being generated": batch.in_flight,
        "wait for a next message": batch.unanswered,
        "wait for the judge": batch.judging,
        "wait at the gateway": batch.queued,
    }
    return Text(", ".join(f"{number} {what}" for what, number in waits.items()))


def _gateway(service: ServiceStatus) -> str:
    doing = "takes requests" if service.accepting else "holds requests"
    return f"{doing}, {service.batch.in_flight} being answered, {service.batch.queued} waiting; version {service.version}"


def _engines(engines: tuple[EngineStatus, ...]) -> Text:
    lines = [
        Text.assemble(
            f"{engine.name}  ",
            (engine.state, "green" if engine.state == "ready" else "yellow"),
            f"  version {'-' if engine.version is None else engine.version}, {engine.in_flight} in flight"
            + (f", restarted {engine.restarts} times" if engine.restarts else ""),
        )
        for engine in engines
    ]
    return Text("\n").join(lines) if lines else Text("none")


def _judge(judge: JudgeStatus, judging: int) -> Text:
    waiting = f"{judging} turns wait for its votes"
    if judge.alert is not None:
        return Text(f"{waiting}; {judge.alert}", "red")
    if judge.away_s:
        return Text(f"{waiting}, {judge.unavailable} of them again; no quorum for {judge.away_s:.0f} s", "yellow")
    return Text(waiting)


def _last_step(picture: Picture) -> Iterator[Line]:
    said = _numbers(picture.last_metrics)
    if said:
        yield f"step {picture.step}", Text(said)


def _numbers(metrics: Mapping[str, Any]) -> str:
    return ", ".join(form.format(metrics[name]) for name, form in _METRICS if metrics.get(name) is not None)


def _health(health: HealthStatus) -> Text:
    if health.step == 0:
        return Text("no verdict yet")
    verdict = Text.assemble((health.state, _HEALTH_STYLES[health.state]), f" after step {health.step}")
    return Text("\n").join([verdict, *(Text(finding["text"]) for finding in health.findings)])


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
