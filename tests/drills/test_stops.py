"""A run is cancelled, suspended and resumed, as by a person; and two runs that need the same machine."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable

import httpx
import pytest
from prefect.client.orchestration import get_client
from prefect.settings import PREFECT_API_URL
from prefect.states import Suspended

from flows.local_prefect import HOME
from openclaw_core.config.env import child_environment
from openclaw_core.ledger import Ledger, StepRecord, StepState
from openclaw_core.trainer import retention
from tests.drills.conftest import Start
from tests.drills.going import Going, leftovers, until

pytestmark = [pytest.mark.drills, pytest.mark.timeout(1200)]


STRANGERS = {"rollout.max_staleness": 1}
"""As the presets for people: with 0, local-cpu's, a new session waits at the gateway while the batch is full."""


def steps(going: Going) -> list[StepRecord]:
    """As the ledger has them."""
    ledger = Ledger(going.run.ledger_file)
    try:
        return ledger.steps()
    finally:
        ledger.close()


def openclaw_rl(going: Going, command: str, *options: str) -> str:
    """What the command says of the run."""
    words = [
        sys.executable,
        "-m",
        "openclaw_core.cli",
        command,
        going.run.run_id,
        "--runs",
        str(going.run.path.parent),
        *options,
    ]
    done = subprocess.run(words, cwd=HOME, check=True, capture_output=True, text=True, timeout=300)
    return done.stdout


def in_shell(command: str, going: Going) -> None:
    """`python -m flows.pause COMMAND RUN`."""
    environment = child_environment({"PREFECT_API_URL": str(PREFECT_API_URL.value())})
    words = [sys.executable, "-m", "flows.pause", command, going.run.run_id]
    subprocess.run(words, cwd=HOME, env=environment, check=True, capture_output=True, timeout=120)


def in_ui(going: Going) -> None:
    """What the UI asks for under Suspend."""
    with get_client(sync_client=True) as client:
        client.set_flow_run_state(going.id, Suspended(timeout_seconds=3600))


def serves(going: Going) -> bool:
    """Whether a user gets an answer."""
    headers = {"Authorization": f"Bearer {going.run.secrets().api_key}"}
    body = {"model": going.config.model.name, "messages": [{"role": "user", "content": "How are you?"}], "max_tokens": 4}
    answer = httpx.post(f"{going.config.gateway_url}/chat/completions", headers=headers, json=body, timeout=60)
    return answer.is_success


def suspended(going: Going, how: Callable[[Going], None]) -> None:
    """The flow's process and the feeder end where a step waits for turns, or with the step; the service does not."""
    flow = going.process()
    how(going)
    until(lambda: not flow.is_running(), "the flow's process has ended")
    assert going.state.name == "Suspended"
    assert not going.alive("feeder")
    assert {step.state for step in steps(going)} <= {StepState.COLLECTED, StepState.REPORTED}
    shown = openclaw_rl(going, "status", "--once")
    assert f"{going.run.run_id}  suspended" in shown and f"flow run {going.id}: suspended at" in shown
    assert going.alive("stand-in")
    assert serves(going)


def cancelled(going: Going) -> None:
    """The service ends its phase and writes a checkpoint; then nothing of the run is left."""
    began = time.monotonic()
    going.command("cancel")
    going.await_state("Cancelled")
    print(f"cancelled after {time.monotonic() - began:.1f} s")  # noqa: T201
    until(lambda: not leftovers(going.run.path), "nothing of it is left")
    trained = [record.step for record in steps(going) if record.version is not None]
    checkpoint = retention.latest(going.run.checkpoints)
    assert checkpoint == retention.step_directory(going.run.checkpoints, trained[-1]), "nothing is to be trained again"


def resumed(going: Going) -> None:
    """It goes on where it stood, on the same service."""
    service = going.service()
    in_shell("resume", going)
    going.await_state("Completed")
    assert not [stage.name for stage in going.stages() if stage.name == "restart-service"]
    assert [job.name for job in sorted(going.run.logs.glob("service-*.log"))] == ["service-1.log"]
    assert not service.is_running()
    going.check_trained_once()
    going.check_attempts(2)
    going.check_nothing_taken_back()


def test_one_is_cancelled_and_the_one_that_waits_for_it_is_suspended_and_resumed(start: Start):
    first = start(steps=50)
    first.await_step(3)
    second = start(steps=12, **STRANGERS)
    until(lambda: second.logged(f"is held by run {first.run.run_id}"), "it is said who has the machine")
    cancelled(first)
    second.await_step(2)
    suspended(second, in_ui)
    resumed(second)
    assert [stage.name for stage in second.stages()].count("wait-for-hosts") == 1


def test_cancelled_while_it_is_suspended_and_stopped_under_its_flow(start: Start):
    going = start(steps=50, **STRANGERS)
    going.await_step(2)
    suspended(going, lambda going: in_shell("suspend", going))
    going.command("cancel")
    going.await_state("Cancelled")
    until(lambda: not leftovers(going.run.path), "nothing of it is left")
    going.await_worker()
    done = len(steps(going))
    going.command("retry")
    going.await_step(done + 1)
    openclaw_rl(going, "stop")
    assert "was stopped by `openclaw-rl stop`" in str(going.await_state("Cancelled").message)
    until(lambda: not leftovers(going.run.path), "nothing of it is left")
    going.check_nothing_taken_back()
