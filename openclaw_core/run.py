"""The whole chain on one page, without Prefect: what `openclaw-rl run` does, and what flows/openclaw.py does with Prefect."""

from __future__ import annotations

from collections.abc import Callable

from openclaw_core import stages
from openclaw_core.config import RunConfig
from openclaw_core.driver import DriverState, RunStopped, drivers_client, driving
from openclaw_core.errors import OpenClawError
from openclaw_core.evaluation.beside import finish_trials, start_trials, stop_trials
from openclaw_core.feeding import feeder_state, feeder_watch, start_feeder, stop_feeder
from openclaw_core.health.status import HealthStatus, stop_if_ill
from openclaw_core.loop.client import drive, drive_step, phase_deadlines
from openclaw_core.loop.summary import Summary, summarise
from openclaw_core.report.recorder import recorded
from openclaw_core.rundir import RunDir

Tell = Callable[[str], None]
"""Told one line for people, about every stage and every phase."""


def run_all(config: RunConfig, run: RunDir, tell: Tell) -> Summary:
    """Prepare, train, evaluate before and after, export, tear down.

    After a failure, and after Ctrl-C, the cluster is left as it is, for a second call to take up.

    Raises:
        OpenClawError: a stage or a step failed.
        RunStopped: `openclaw-rl stop` has ended the run.
    """
    try:
        with driving(run, None, {KeyboardInterrupt: DriverState.STOPPED, RunStopped: DriverState.STOPPED}):
            return _chain(config, run, tell)
    except RunStopped:
        raise
    except (OpenClawError, KeyboardInterrupt):
        tell(
            f"what is up is left as it is: the same command with --run-id {run.run_id} goes on, "
            f"`openclaw-rl stop {run.path}` ends it"
        )
        raise


def _chain(config: RunConfig, run: RunDir, tell: Tell) -> Summary:
    for _, stage in stages.PREPARE:
        _tell_result(tell, stage(config, run))
    with recorded(config, run):
        summary = _trained(config, run, tell)
    _tell_result(tell, stages.teardown(config, run))
    return summary


def _trained(config: RunConfig, run: RunDir, tell: Tell) -> Summary:
    _tell_result(tell, stages.attach_service(config, run))
    _tell_result(tell, stages.evaluate(config, run, "before"))
    try:
        start_trials(config, run)
        start_feeder(run)
        _train(config, run, tell)
        finish_trials(config, run)
    finally:
        stop_feeder(run)
        stop_trials(run)
    _tell_result(tell, stages.evaluate(config, run, "after"))
    _tell_result(tell, stages.export(config, run))
    return summarise(config, run)


def _train(config: RunConfig, run: RunDir, tell: Tell) -> None:
    deadlines, watch = phase_deadlines(config), feeder_watch(run)
    with drivers_client(run, config) as client:

        def run_step(step: int) -> None:
            def on_phase(phase: str) -> None:
                tell(f"step {step}/{config.train.steps}: {phase}")

            drive_step(client, step, deadlines, on_phase=on_phase, on_wait=watch)

        def on_health(health: HealthStatus) -> None:
            if health.changed:
                tell(health.in_words())
            stop_if_ill(health)

        drive(client, run_step, reattach=lambda: _take_up_again(config, run, tell), on_health=on_health)


def _take_up_again(config: RunConfig, run: RunDir, tell: Tell) -> None:
    """The service, whatever it stood on is gone: Ray's containers, or the whole host with its feeder."""
    _tell_result(tell, stages.restart_service(config, run))
    feeder = feeder_state(run)
    if feeder is not None and not feeder.alive:
        start_feeder(run)


def _tell_result(tell: Tell, result: stages.StageResult) -> None:
    tell(f"{result['stage']}: {result['status']}, {result['detail']}")
