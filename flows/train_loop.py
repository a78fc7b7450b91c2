"""The train loop: one task that asks the service which step is next and runs it as a subflow, until none is left."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from prefect import task
from prefect.client.schemas.objects import State
from prefect.context import AsyncClientContext
from prefect.settings import PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings
from prefect.states import Completed
from prefect.transactions import Transaction
from prefect.utilities.asyncutils import run_coro_as_sync

from flows.rollout_step import rollout_step
from flows.server import through_restarts
from openclaw_core.config import RunConfig
from openclaw_core.driver import drivers_client
from openclaw_core.evaluation.beside import finish_trials, start_trials
from openclaw_core.loop.client import drive
from openclaw_core.loop.summary import Summary, summarise
from openclaw_core.rundir import RunDir
from tasks.evaluate import evaluate
from tasks.export import export
from tasks.feeder import FeederSwitch
from tasks.health import react
from tasks.policy import MUST_BE_TRUE_NOW, opened
from tasks.reporting import report_summary, run_shown
from tasks.service import restart_service, start_service
from tasks.service_log import service_log_shown
from tasks.suspension import suspended_only_while_waiting


# A task, so that each step subflow gets a tracking key of its own: Prefect can then never take an old step's run for a
# new step by its position among the calls.
@task(name="train-loop", task_run_name="train-loop", tags=["stage"], **MUST_BE_TRUE_NOW)
def train_loop(run_dir: str, feeder: FeederSwitch) -> State[Summary]:
    """Attach to the service, evaluate, train, evaluate again, export."""
    config, run = opened(run_dir)
    with _each_task_for_itself(), service_log_shown(config, run), run_shown(config, run):
        start_service(run_dir)
        evaluate(run_dir, "before")
        start_trials(config, run)
        feeder.on.set()
        drive_steps(config, run)
        feeder.off.set()
        finish_trials(config, run)
        evaluate(run_dir, "after")
        export(run_dir)
        summary = summarise(config, run)
    report_summary(summary)
    return Completed(message=_in_short(summary), data=summary)


def drive_steps(config: RunConfig, run: RunDir) -> None:
    """Run the steps that are left, train.monitor_every of them a subflow. To be called inside a task."""
    run_dir, train = str(run.path), config.train

    def run_step(step: int) -> None:
        with suspended_only_while_waiting():
            rollout_step(run_dir, step, min(step + train.monitor_every - 1, train.steps))

    with drivers_client(run, config) as client, _cheap_subflows():
        drive(
            client,
            run_step=lambda step: through_restarts(lambda: run_step(step)),
            reattach=lambda: restart_service(run_dir),
            on_health=react(run.run_id),
        )


@contextlib.contextmanager
def _each_task_for_itself() -> Iterator[None]:
    """A task within a task joins its transaction. When a run is suspended or cancelled, Prefect would take all of them back
    and show every phase of every step as RolledBack on the page of the run; until then it would keep them in memory."""
    token = Transaction.__var__.set(None)  # pyright: ignore[reportArgumentType]
    try:
        yield
    finally:
        Transaction.__var__.reset(token)


def _in_short(summary: Summary) -> str:
    satisfied = summary["satisfied"]
    return f"{summary['steps']} steps, held-out satisfied share {satisfied['before']:.3f} → {satisfied['after']:.3f}"


@contextlib.contextmanager
def _cheap_subflows() -> Iterator[None]:
    """Spares each step what Prefect's subflows cost most.

    A heartbeat thread, for which a subflow waits up to a second when it ends; this run's own heartbeat goes on. And an HTTP
    client to create its task run with: 25 ms of certificates, a connection, and a question after CSRF tokens.
    """
    shared = AsyncClientContext()
    run_coro_as_sync(shared.client.__aenter__())  # in the loop where Prefect uses it
    try:
        with shared, temporary_settings({PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}):
            yield
    finally:
        run_coro_as_sync(shared.client.__aexit__(None, None, None))
