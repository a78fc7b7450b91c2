"""The process that stands in for a flow run whose own has ended: keeps the hosts of a suspended run, ends a cancelled one.

Prefect ends the process of a flow run at once when it is suspended, and within seconds when it is cancelled. The service ends
its phase and writes a checkpoint first; and nobody else would end what a suspended run has up, when that is cancelled.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import httpx
import structlog
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import StateType
from prefect.exceptions import ObjectNotFound, Pause, TerminationSignal
from prefect.logging import get_run_logger
from prefect.settings import get_current_settings

from flows.queueing import Claim, Hold, hosts_held, taken_up
from openclaw_core.cluster.processes import Processes
from openclaw_core.driver import DriverNote, DriverState, note
from openclaw_core.log import configure_logging
from openclaw_core.rundir import RunDir
from openclaw_core.stages import teardown

NAME = "stand-in"
LOOK_EVERY_S = 2.0
HANDED_BACK_S = 1200.0
"""How long a new attempt waits for it: the service may be in its longest phase."""
WAITING = {StateType.PAUSED, StateType.SCHEDULED, StateType.PENDING}
"""Suspended, or resumed and not yet at work."""
ENDED = {StateType.CANCELLING, StateType.CANCELLED}

log = structlog.get_logger(__name__)


def start_stand_in(run: RunDir, flow_run_id: UUID | str) -> None:
    """Start it, unless one is at work."""
    processes = Processes(run.processes)
    if processes.find(NAME) is None:
        command = [sys.executable, "-m", "flows.stand_in", str(run.path), str(flow_run_id)]
        settings = get_current_settings().to_environment_variables(exclude_unset=True)
        processes.start(NAME, command, log_file=run.logs / f"{NAME}.log", env=settings)


def await_last_attempt(run: RunDir, flow_run_id: UUID | str) -> None:
    """Wait for the process of the flow run's last attempt.

    Where the run was resumed soon, that one is still at the step with which it was to stop, and would end this one's feeder.
    """
    logger, told = get_run_logger(), False
    while (last := DriverNote.read(run)) is not None and last.flow_run == str(flow_run_id) and last.at_work_elsewhere:
        if not told:
            logger.info("the last attempt (pid %d) is still at its step; this one goes on when that is done", last.pid)
            told = True
        time.sleep(LOOK_EVERY_S)


@contextlib.contextmanager
def at_work_on_hosts(run: RunDir, flow_run_id: UUID | str) -> Iterator[None]:
    """The run's hosts are its own for the block, and stay so where the flow run is suspended or cancelled in it.

    Raises ClusterError: a process that stands in does not hand the run back.
    """
    if (standing_in := Processes(run.processes).find(NAME)) is not None:
        standing_in.wait(HANDED_BACK_S)
    # A cancellation comes as TerminationSignal; what is told of it starts the process (openclaw.py).
    with hosts_held(Claim.of(run.config(), run.run_id, flow_run_id), handed_over=(Pause, TerminationSignal)):
        try:
            yield
        except Pause:
            start_stand_in(run, flow_run_id)
            raise


def stand_in(run: RunDir, flow_run_id: UUID) -> None:
    """Until the run is at work again, or cancelled: then everything is ended, and the hosts are free."""
    config = run.config()
    claim = Claim.of(config, run.run_id, flow_run_id)
    lease = taken_up(claim)  # None: it was cancelled before it had the hosts
    hold = Hold(claim, lease, log) if lease else None
    release = False
    try:
        state = _state_when_decided(flow_run_id)
        log.info("flow_run_decided", flow_run=str(flow_run_id), state=state.value if state else "deleted")
        release = state is not StateType.RUNNING
        if state is None or state in ENDED:
            note(run, str(flow_run_id), DriverState.STOPPED)
            log.info("run_ended", detail=teardown(config, run)["detail"])
    finally:
        if hold is not None:
            hold.end(release=release)


def _state_when_decided(flow_run_id: UUID) -> StateType | None:
    """None: the flow run has been deleted."""
    while True:
        try:
            with get_client(sync_client=True) as client:
                state = client.read_flow_run(flow_run_id).state
        except ObjectNotFound:
            return None
        except httpx.HTTPError as error:  # as long as it takes: users are served meanwhile
            log.info("no_answer_of_prefect", reason=str(error))
        else:
            if state is not None and state.type not in WAITING:
                return state.type
        time.sleep(LOOK_EVERY_S)


if __name__ == "__main__":
    configure_logging()
    stand_in(RunDir(Path(sys.argv[1])), UUID(sys.argv[2]))
