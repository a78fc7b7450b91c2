"""What is known of a run without Prefect: its service's word, its processes, its files."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from openclaw_core.cluster.processes import OwnedProcess, Processes
from openclaw_core.cluster.ray_head import NAME as RAY_HEAD
from openclaw_core.cluster.ray_head import driver_log
from openclaw_core.config import RunConfig
from openclaw_core.driver import DriverNote, DriverState
from openclaw_core.loop.client import ControlClient, ControlError, ServiceSilent, ServiceStatus
from openclaw_core.rundir import RunDir

if TYPE_CHECKING:
    from openclaw_core.loop.summary import Summary

_TAIL_LINES = 12
_TAIL_BYTES = 64_000


class RunState(StrEnum):
    """How a run is, as far as its machine knows."""

    RUNNING = "running"
    """Its service answers."""
    SUSPENDED = "suspended"
    """Its service answers, and nobody asks it for steps until a person resumes the run."""
    SILENT = "silent"
    """Its service does not answer, and Ray is up, or on hosts that are not asked: it is starting, or was lost."""
    STARTING = "starting"
    """Ray is up, and no service has been started on it yet."""
    FINISHED = "finished"
    """Its summary is written and nothing of it is alive."""
    FAILED = "failed"
    """Its driver has given up, and its service does not answer."""
    STOPPED = "stopped"
    """It was begun, is not at its end, and nothing of it is alive."""
    NEW = "new"
    """Its directory is there, and no service has been started yet."""


@dataclass(frozen=True, slots=True)
class LogTail:
    """The last lines of a file."""

    file: Path
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Picture:
    """A run at one moment."""

    run: RunDir
    state: RunState
    stage: str
    """The flow's name for what is being done; "" where nothing is."""
    steps: int
    driver: DriverNote | None
    """None where it has not said anything."""
    service: ServiceStatus | None
    silence: str
    """Why there is no word of the service; "" where there is one."""
    processes: tuple[OwnedProcess, ...]
    """Of this machine, those that are alive."""
    summary: Summary | None
    last_metrics: dict[str, Any]
    """Of the last step that was reported; empty before the first."""
    log: LogTail | None
    """What the service wrote last, where it does not answer."""
    advice: str

    @property
    def driven(self) -> bool:
        """Whether somebody asks its service for steps, as far as that has been said."""
        return self.driver is None or (self.driver.state is DriverState.WORKING and not self.driver.lost)

    @property
    def ended(self) -> bool:
        """Whether nothing more will happen by itself."""
        return self.state in (RunState.FINISHED, RunState.FAILED, RunState.STOPPED)

    @property
    def step(self) -> int:
        """The last step that was reported; 0 before the first."""
        if self.service is not None and self.service.serving:
            return self.service.step
        return int(self.last_metrics.get("step", 0))

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        return {
            "run_id": self.run.run_id,
            "directory": str(self.run.path),
            "state": self.state.value,
            "stage": self.stage or None,
            "step": self.step,
            "steps": self.steps,
            "driver": self.driver.model_dump(mode="json") | {"lost": self.driver.lost} if self.driver is not None else None,
            "service": self.service.model_dump(mode="json") if self.service is not None else None,
            "silence": self.silence or None,
            "processes": [{"name": each.name, "pid": each.pid, "log": each.log} for each in self.processes],
            "summary": self.summary,
            "last_metrics": self.last_metrics,
            "log": {"file": str(self.log.file), "lines": self.log.lines} if self.log is not None else None,
            "advice": self.advice or None,
        }


def look(run: RunDir, config: RunConfig, client: ControlClient, silence_s: float = 0) -> Picture:
    """The run now. Waits out a silence of the service of up to ``silence_s``; never raises for what it finds."""
    service, silence = None, ""
    try:
        service = client.status(silence_s=silence_s)
    except ServiceSilent as error:
        silence = str(error)
    except ControlError as error:
        silence = f"what answers on {client.url} is no service of this run: {error}"
    processes = tuple(Processes(run.processes).alive())
    driver = DriverNote.read(run)
    state = _with_service(driver) if service is not None else _without_service(run, config, processes, driver)
    return Picture(
        run,
        state,
        _stage(run, state, service),
        config.train.steps,
        driver,
        service,
        silence,
        processes,
        _summary(run) if state is RunState.FINISHED else None,
        service.metrics if service is not None and service.serving else _last_metrics(run),
        _service_log(run) if state in (RunState.SILENT, RunState.FAILED, RunState.STOPPED) else None,
        _advice(run, config, state, service),
    )


def running_or_newest(runs: Sequence[RunDir]) -> tuple[RunDir, str]:
    """The one run that has processes here, else the newest, and in words which of both it is. ``runs``: oldest first."""
    alive = [run for run in runs if Processes(run.processes).alive()]
    if len(alive) == 1:
        return alive[0], "the one that is alive"
    return runs[-1], f"the newest of {len(runs)}"


def _with_service(driver: DriverNote | None) -> RunState:
    return RunState.SUSPENDED if driver is not None and driver.state is DriverState.SUSPENDED else RunState.RUNNING


def _without_service(run: RunDir, config: RunConfig, processes: Sequence[OwnedProcess], driver: DriverNote | None) -> RunState:
    if any(process.name == RAY_HEAD for process in processes):
        return RunState.SILENT if _service_logs(run) else RunState.STARTING
    if run.summary_file.exists():
        return RunState.FINISHED
    if driver is not None and driver.state is DriverState.FAILED:
        return RunState.FAILED
    if not (_service_logs(run) or run.metrics_file.exists() or run.ledger_file.exists()):
        return RunState.NEW
    return RunState.SILENT if config.cluster.containers else RunState.STOPPED


def _stage(run: RunDir, state: RunState, service: ServiceStatus | None) -> str:
    """By what the run has left behind: which stages are through is known to Prefect alone."""
    if service is None and state not in (RunState.STARTING, RunState.SILENT):
        return ""
    if run.summary_file.exists():
        return "teardown"
    if state is RunState.STARTING:
        return "launch-ray"
    if service is None or not service.serving:
        return "service"
    if service.state == "finished":
        return "export" if _evaluated(run, "after") else "evaluate-after"
    begun = service.phase is not None or service.step > 0 or _evaluated(run, "before")
    return "train-loop" if begun else "evaluate-before"


def _evaluated(run: RunDir, label: str) -> bool:
    return (run.evaluation / f"{label}.json").exists()


def _advice(run: RunDir, config: RunConfig, state: RunState, service: ServiceStatus | None) -> str:
    again = f"`openclaw-rl run --run-id {run.run_id}` with the same parameters, or Retry in Prefect"
    match state:
        case RunState.RUNNING:
            return (service and service.advice) or ""
        case RunState.SUSPENDED:
            return "People are answered, by the weights as they are. *Resume* in Prefect's UI goes on, *Cancel* ends it."
        case RunState.STARTING:
            return "Ray is up; the training service comes next."
        case RunState.SILENT:
            return (
                "The service is starting, or was lost: whoever drives the run starts it again after "
                f"cluster.silence_s={config.cluster.silence_s:g} s. If nobody does: {again}. "
                f"`openclaw-rl stop {run.run_id}` ends it."
            )
        case RunState.FAILED | RunState.STOPPED:
            return f"Nothing of it is alive here. {again} goes on from its checkpoint and ledger."
        case RunState.NEW:
            return (
                "Its service has not been started. Before that come download-model, convert-checkpoint and env-check, whose "
                f"word is where the run was begun. If that has ended: {again} goes on."
            )
        case RunState.FINISHED:
            return f"`openclaw-rl report {run.run_id}` writes its report."


def _summary(run: RunDir) -> Summary | None:
    # Brings in the evaluations, which a run that goes on does without.
    from openclaw_core.loop.summary import read_summary

    return read_summary(run)


def _last_metrics(run: RunDir) -> dict[str, Any]:
    whole = _end_of(run.metrics_file).rpartition("\n")[0]  # the last line may be being written
    return json.loads(whole.splitlines()[-1]) if whole else {}


def _service_logs(run: RunDir) -> list[Path]:
    """Of every attempt, kept or still where Ray writes it, the last attempt last."""
    rays = driver_log(run, f"{run.run_id}-*")
    files = [*run.logs.glob("service-*.log"), *rays.parent.glob(rays.name)]
    return sorted(files, key=lambda file: int(file.stem.rpartition("-")[2]))


def _service_log(run: RunDir) -> LogTail | None:
    files = _service_logs(run)
    return LogTail(files[-1], tuple(_end_of(files[-1]).splitlines()[-_TAIL_LINES:])) if files else None


def _end_of(file: Path) -> str:
    """Its last _TAIL_BYTES; "" where there is no such file, or no longer."""
    try:
        with file.open("rb") as opened:
            opened.seek(max(0, file.stat().st_size - _TAIL_BYTES))
            return opened.read().decode(errors="replace")
    except FileNotFoundError:
        return ""
