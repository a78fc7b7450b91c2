"""A run under way, as a person at the UI and at a shell has it, and what must be true of it at its end."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import psutil
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import (
    LogFilter,
    LogFilterFlowRunId,
    TaskRunFilter,
    TaskRunFilterState,
    TaskRunFilterStateName,
)
from prefect.client.schemas.objects import State, TaskRun
from prefect.events.filters import EventAnyResourceFilter, EventFilter, EventNameFilter
from prefect.settings import PREFECT_API_URL
from prefect.states import Cancelled

from flows.local_prefect import HOME, PREFECT, LocalPrefect
from flows.parameters import default_run_id
from flows.stand_in import NAME as STAND_IN
from openclaw_core.cluster.processes import Processes
from openclaw_core.cluster.ray_head import find_head
from openclaw_core.config import RunConfig, load_config
from openclaw_core.config.env import child_environment
from openclaw_core.ledger import Ledger, StepState
from openclaw_core.loop.client import ControlClient, ControlError, ServiceStatus
from openclaw_core.rundir import RunDir
from openclaw_core.stages import teardown
from tests.integration.prefect_runs import step_runs, task_runs
from tests.ports import free_ports

SETTINGS = {
    "model.name": "tiny",
    "model.context_length": 512,
    "rollout.batch_size": 4,
    "rollout.max_response_tokens": 12,
    "feeder.sessions_in_flight": 4,
    "evaluation.problems": 1,
    "cluster.ray_object_store_mb": 100,
    "cluster.silence_s": 5,
    "train.save_interval": 2,
}
DEADLINE_S = 600
PRODUCING = {"build-image", "distribute-image", "download-model", "convert-checkpoint"}


def until(condition: Callable[[], Any], what: str, deadline_s: float = DEADLINE_S) -> Any:
    """What ``condition`` gives as soon as that is true."""
    end = time.monotonic() + deadline_s
    while not (found := condition()):
        assert time.monotonic() < end, f"not within {deadline_s:g} s: {what}"
        time.sleep(0.3)
    return found


def leftovers(path: Path) -> list[str]:
    """Processes that have the path in their command line."""
    lines = {process.pid: " ".join(process.info["cmdline"] or []) for process in psutil.process_iter(["cmdline"])}
    return [f"{pid}: {line[:200]}" for pid, line in lines.items() if str(path) in line]


class Going:
    """One flow run of openclaw/local-cpu."""

    def __init__(self, prefect: LocalPrefect, model: Path, steps: int, settings: Mapping[str, Any]) -> None:
        self.steps = steps
        place = {"paths.runs": str(prefect.state / "runs"), "paths.models": str(prefect.state / "models")}
        overrides = {**SETTINGS, **place, "model.source": f"file://{model}", **free_ports(), **settings}
        self.config: RunConfig = load_config("local-cpu", overrides | {"train.steps": steps})
        with get_client(sync_client=True) as client:
            deployment = client.read_deployment_by_name("openclaw/local-cpu")
            parameters = {"steps": steps, "overrides": overrides}
            self.id = client.create_flow_run_from_deployment(deployment.id, parameters=parameters).id
        self.run = RunDir(self.config.paths.runs / default_run_id("local-cpu", str(self.id)))

    @property
    def state(self) -> State:
        with get_client(sync_client=True) as client:
            state = client.read_flow_run(self.id).state
        assert state is not None
        return state

    def await_state(self, name: str) -> State:
        """This one, by name; another final one is a failure."""

        def there() -> State | None:
            state = self.state
            assert state.name == name or not state.is_final(), f"{state.name}: {state.message}"
            return state if state.name == name else None

        return until(there, f"{self.run.run_id} is {name}")

    def await_worker(self) -> None:
        """Until the worker has said its last word on the process, seconds after its end: it takes back a retry before that."""

        def there() -> bool:
            name, resource = EventNameFilter(name=["prefect.worker.executed-flow-run"]), f"prefect.flow-run.{self.id}"
            wanted = EventFilter(event=name, any_resource=EventAnyResourceFilter(id=[resource]))
            with get_client(sync_client=True) as client:
                return client.read_events(wanted, limit=1).total > 0

        until(there, f"the worker is done with {self.run.run_id}", 60)

    def status(self) -> ServiceStatus | None:
        """Of the service, if it answers."""
        if not self.run.secrets_file.exists():
            return None
        with ControlClient.of(self.run, self.config) as client:
            try:
                return client.status(silence_s=0)
            except ControlError:
                return None

    def await_step(self, step: int) -> None:
        """Until the steps before it are done."""

        def there() -> bool:
            status, state = self.status(), self.state
            assert not state.is_final(), f"{state.name}: {state.message}"
            return status is not None and status.next_step >= step

        until(there, f"{self.run.run_id} is at step {step}")

    def process(self) -> psutil.Process:
        """That of the flow."""

        def is_it(process: psutil.Process) -> bool:
            try:
                engine = "prefect.engine" in process.cmdline() or "prefect.flow_engine" in " ".join(process.cmdline())
                return engine and process.environ().get("PREFECT__FLOW_RUN_ID") == str(self.id)
            except psutil.Error:
                return False

        return until(lambda: next(filter(is_it, psutil.process_iter()), None), "the flow's process", 30)

    def service(self) -> psutil.Process:
        """That of the training service."""

        def is_it(process: psutil.Process) -> bool:
            return all(word in _line(process) for word in ("openclaw_core.cli serve", str(self.run.path)))

        return until(lambda: next(filter(is_it, psutil.process_iter()), None), "the service's process", 30)

    def actor(self, name: str) -> psutil.Process:
        """One of Ray's, by the name that Ray gives its process."""
        session = {child.pid for child in self._head().children(recursive=True)}
        return until(lambda: next((p for p in psutil.process_iter() if p.pid in session and name in _line(p)), None), name, 30)

    def alive(self, name: str) -> bool:
        """Whether one of the run's recorded processes is."""
        return Processes(self.run.processes).find(name) is not None

    def command(self, *words: str) -> None:
        """`prefect flow-run WORDS ID`."""
        environment = child_environment({"PREFECT_API_URL": str(PREFECT_API_URL.value())})
        command = [*PREFECT, "flow-run", *words, str(self.id)]
        subprocess.run(command, cwd=HOME, env=environment, check=True, capture_output=True, text=True, timeout=60)

    def stages(self) -> list[TaskRun]:
        """The stage tasks of all attempts, in order."""
        return [task for task in task_runs(self.id) if "stage" in task.tags]

    def logged(self, text: str) -> bool:
        """Whether a line of the run's page has it."""
        with get_client(sync_client=True) as client:
            wanted, lines = LogFilter(flow_run_id=LogFilterFlowRunId(any_=[self.id])), 0
            while page := client.read_logs(wanted, limit=200, offset=lines):
                if any(text in line.message for line in page):
                    return True
                lines += len(page)
        return False

    def check_trained_once(self) -> None:
        """All steps, in order, each once: in the ledger, and as runs that Prefect shows; every turn in one batch."""
        ledger = Ledger(self.run.ledger_file)
        try:
            records = ledger.steps()
        finally:
            ledger.close()
        numbers = list(range(1, self.steps + 1))
        assert [(each.step, each.version, each.state) for each in records] == [(n, n, StepState.REPORTED) for n in numbers]
        turns = [turn for each in records for turn in each.turn_ids]
        assert len(turns) == len(set(turns)) == self.steps * self.config.rollout.batch_size
        assert len(self.run.metrics_file.read_text().splitlines()) == self.steps
        steps = step_runs(self.id)
        assert all(step.name == f"step-{step.parameters['step']:05d}" for step in steps)
        assert all(step.state and step.state.is_final() for step in steps), [(step.name, step.state_name) for step in steps]
        completed = [step.parameters["step"] for step in steps if step.state_name == "Completed"]
        broken_off = {step.parameters["step"] for step in steps if step.state_name in ("Crashed", "Failed", "Suspended")}
        assert completed == sorted(set(completed))
        # What the service has finished while nobody drove it is not asked for again.
        assert set(numbers) - set(completed) <= broken_off

    def check_nothing_taken_back(self) -> None:
        """No stage and no phase is shown as RolledBack."""
        with get_client(sync_client=True) as client:
            taken_back = TaskRunFilterState(name=TaskRunFilterStateName(any_=["RolledBack"]))
            assert client.read_task_runs(task_run_filter=TaskRunFilter(state=taken_back)) == []

    def check_attempts(self, attempts: int) -> None:
        """What is done in the first attempt is Cached in the later ones, and what must be true now is looked at in each."""
        stages = self.stages()
        for name in PRODUCING:
            states = [stage.state_name for stage in stages if stage.name == name]
            assert len(states) == attempts, (name, states)
            assert states[1:] == ["Cached"] * (attempts - 1), (name, states)
        for name in ("env-check", "launch-ray"):
            states = [stage.state_name for stage in stages if stage.name == name]
            assert len(states) == attempts, (name, states)
            assert set(states) <= {"Completed", "Reused"}

    def end(self) -> None:
        """Whatever is left of it: the next drill needs the machine."""
        if not self.state.is_final():
            with get_client(sync_client=True) as client:
                client.set_flow_run_state(self.id, Cancelled(message="the drill is over"), force=True)
        if self.run.config_file.exists():
            Processes(self.run.processes).stop(STAND_IN)
            teardown(self.config, self.run)

    def _head(self) -> psutil.Process:
        head = find_head(self.run)
        assert head is not None
        return psutil.Process(head.pid)


def kill(process: psutil.Process) -> None:
    """SIGKILL, and its end."""
    process.send_signal(signal.SIGKILL)
    psutil.wait_procs([process], timeout=10)


def recorded(prefect: LocalPrefect, name: str) -> psutil.Process:
    """The server or the worker."""
    process = Processes(prefect.state / "processes").find(name)
    handle = process.handle() if process is not None else None
    assert handle is not None
    return handle


def _line(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""
