"""The trials of a run as a process beside it (`openclaw-rl evaluate RUN --follow`), for runs that have convergence_seeds."""

from __future__ import annotations

import sys

import structlog

from openclaw_core.cluster.errors import ClusterError
from openclaw_core.cluster.processes import OwnedProcess, Processes
from openclaw_core.config.schema import RunConfig
from openclaw_core.rundir import RunDir

log = structlog.get_logger()

NAME = "trials"


def start_trials(config: RunConfig, run: RunDir) -> OwnedProcess | None:
    """Start it, or take the one that is alive; None where ``evaluation.convergence_seeds`` is 0."""
    if config.evaluation.convergence_seeds == 0:
        return None
    processes = Processes(run.processes)
    command = [sys.executable, "-m", "openclaw_core.cli", "evaluate", str(run.path), "--follow"]
    return processes.find(NAME) or processes.start(NAME, command, log_file=run.logs / f"{NAME}.log")


def finish_trials(config: RunConfig, run: RunDir) -> None:
    """Wait until it has its last answers, as long as the engine may take for one; then end it.

    An evaluation that failed does not fail the training: it is a warning, and what it had is kept.
    """
    process = Processes(run.processes).recorded(NAME)
    if process is None:
        return
    try:
        code = process.wait(config.engine.deadline_s)
    except ClusterError as error:
        log.warning("trials_not_finished", reason=str(error))
    else:
        if code not in (0, None):  # None: it was another process's child
            log.warning("trials_failed", exit_code=code, log=process.log, last_lines=process.log_tail(3))
    stop_trials(run)


def stop_trials(run: RunDir) -> None:
    """End it at once, if it is running; what it has found so far is kept."""
    Processes(run.processes).stop(NAME, grace_s=10)
