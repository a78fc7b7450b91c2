"""The driver's side of the control API: ask which step is next, run its phases, wait with a deadline."""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable, Mapping
from typing import Any, Literal, Self

import httpx
import structlog
from pydantic import BaseModel, ConfigDict, Field

from openclaw_core.config import RunConfig
from openclaw_core.errors import OpenClawError
from openclaw_core.health.status import HealthStatus, stop_if_ill
from openclaw_core.loop import PHASES
from openclaw_core.report.samples import StepSamples
from openclaw_core.rundir import RunDir

log = structlog.get_logger(__name__)

ROWS_AT_ONCE = 200
"""Steps of one answer, some 500 kB."""
MAX_RESTARTS = 3
"""Restarts of the service in a row, without a step done between them, after which the driver gives up."""

_WITHOUT_CERTIFICATES = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)

OnWait = Callable[[str], None]
"""Called between two polls with what the service says it is waiting for; may raise to give up."""


class ControlError(OpenClawError):
    """The service refused or failed a request; the message is the service's own."""


class ServiceSilent(ControlError):
    """The service has not answered for its deadline: it is gone, or hangs."""

    exit_code = 3


class BatchStatus(BaseModel):
    """The batch that is being collected: ``ready`` of ``size`` samples, and where the turns are that are missing."""

    model_config = ConfigDict(frozen=True)
    ready: int
    size: int
    in_flight: int
    """Answers that are being generated."""
    unanswered: int = 0
    """Turns that wait for a next message."""
    judging: int
    """Turns that wait for the judge."""
    queued: int = 0
    """Requests that wait at the gateway."""


class EngineStatus(BaseModel):
    """One engine behind the gateway."""

    model_config = ConfigDict(frozen=True)
    name: str
    state: str
    in_flight: int
    restarts: int
    version: int | None
    """Of the weights that it took last."""


class JudgeStatus(BaseModel):
    """Whether the judge is there."""

    model_config = ConfigDict(frozen=True)
    unavailable: int = 0
    """Turns that wait because it gave too few votes."""
    away_s: float = 0.0
    """Without a quorum for so long; 0: it is there."""
    alert: str | None = None


class ServiceStatus(BaseModel):
    """GET /status. ``step`` is the last one reported, ``next_step`` the one to run; both count from 1."""

    model_config = ConfigDict(frozen=True)
    run_id: str
    state: Literal["starting", "ready", "finished", "failed"]
    error: str | None
    step: int
    next_step: int
    steps: int
    phase: str | None
    batch: BatchStatus
    engines: tuple[EngineStatus, ...] = ()
    judge: JudgeStatus = JudgeStatus()
    version: int
    metrics: dict[str, Any]
    accepting: bool
    eta_s: float | None
    waiting_for: str
    sessions: dict[str, int] = Field(default_factory=dict)
    """Sessions that each persona has begun so far, as far as feeders have told."""
    advice: str | None = None
    """What to set so that more is learned from the requests that come."""
    health: HealthStatus = HealthStatus()

    @property
    def serving(self) -> bool:
        """True once the gateway answers: while there are steps to run, and after the last one too."""
        return self.state in ("ready", "finished")


class ControlClient:
    """A client of one run's service.

    Raises:
        ControlError: (every method) the service refused or failed the request.
        ServiceSilent: (every method) no answer within ``silence_s``.
    """

    def __init__(self, url: str, token: str, *, silence_s: float = 60, unless: Callable[[], None] = lambda: None) -> None:
        """``unless`` is called before a silence is waited out and a failure is told; may raise, to say what is behind it."""
        self.url = url
        self._unless = unless
        self.silence_s = silence_s
        # Plain HTTP inside the machine or the cluster: no proxy, and no certificates to load (20 ms a client).
        self._http = httpx.Client(
            base_url=url, headers={"Authorization": f"Bearer {token}"}, trust_env=False, verify=_WITHOUT_CERTIFICATES
        )

    @classmethod
    def of(cls, run: RunDir, config: RunConfig, *, unless: Callable[[], None] = lambda: None) -> Self:
        """The client of a run, here or on the hosts of a cluster."""
        url = f"http://{config.cluster.head_address}:{config.ports.control}"
        return cls(url, run.secrets().control_token, silence_s=config.cluster.silence_s, unless=unless)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._http.close()

    def status(self, silence_s: float | None = None) -> ServiceStatus:
        """What the service is doing; waits out a silence of up to ``silence_s`` (default: the client's)."""
        answer = self._request("GET", "/status", timeout_s=5, silence_s=silence_s)
        return ServiceStatus.model_validate(answer)

    def rows(self, after: int = 0, silence_s: float | None = None) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl, parsed, of all steps after ``after``."""
        rows: list[dict[str, Any]] = []
        while True:
            params = {"after": rows[-1]["step"] if rows else after, "limit": ROWS_AT_ONCE}
            found = self._request("GET", "/steps", timeout_s=15, silence_s=silence_s, params=params)["rows"]
            rows += found
            if len(found) < ROWS_AT_ONCE:
                return rows

    def samples(self, step: int, silence_s: float | None = None) -> StepSamples | None:
        """Two answers of a step to read; None where its batch has not closed."""
        return self._request("GET", f"/steps/{step}/samples", timeout_s=15, silence_s=silence_s)["samples"]

    def run_phase(
        self, step: int, phase: str, *, deadline_s: float, wait_s: float = 10, on_wait: OnWait | None = None
    ) -> dict[str, Any]:
        """Run one phase of ``step``, or join it where it is running already, and return its result when it is done.

        ``deadline_s`` runs from the last progress that the service reports: a replay after a loss takes its time.
        """
        end = time.monotonic() + deadline_s
        progress = "no progress was reported"
        while (left := end - time.monotonic()) > 0:
            wait = round(min(wait_s, left), 1)
            answer = self._request("POST", f"/steps/{step}/{phase}", timeout_s=wait + 15, params={"wait_s": wait})
            if answer["done"]:
                return answer["result"] or {}
            if answer["progress"] != progress:
                progress, end = answer["progress"], time.monotonic() + deadline_s
            if on_wait is not None:
                on_wait(progress)
        raise ControlError(f"step {step}: {phase} made no progress for {deadline_s:g} s; the service's last word: {progress}")

    def export(self, deadline_s: float = 600) -> dict[str, Any]:
        """Have the published weights written in Hugging Face form; its path, version and checksum."""
        return self._request("POST", "/export", timeout_s=deadline_s)

    def shutdown(self) -> None:
        """Ask the service to end its phase, to write a checkpoint and to stop."""
        self._request("POST", "/shutdown", timeout_s=5, silence_s=0)

    def _request(
        self,
        verb: str,
        path: str,
        *,
        timeout_s: float,
        silence_s: float | None = None,
        params: Mapping[str, float] | None = None,
    ) -> dict[str, Any]:
        silent_until = time.monotonic() + (self.silence_s if silence_s is None else silence_s)
        while True:
            try:
                answer = self._http.request(verb, path, params=params, timeout=httpx.Timeout(timeout_s, connect=5))
            except httpx.TransportError as error:
                self._unless()
                if time.monotonic() >= silent_until:
                    raise ServiceSilent(f"the training service on {self.url} does not answer: {error}") from error
            else:
                if answer.is_success:
                    return answer.json()
                self._unless()
                if answer.status_code != httpx.codes.SERVICE_UNAVAILABLE:
                    raise ControlError(_message(answer))
                if time.monotonic() >= silent_until:
                    raise ServiceSilent(f"the training service on {self.url} is not ready: {_message(answer)}")
            time.sleep(0.5)


def _message(answer: httpx.Response) -> str:
    try:
        return answer.json()["error"]["message"]
    except (ValueError, KeyError, TypeError):
        return f"HTTP {answer.status_code} of {answer.request.url}: {answer.text[:500]}"


def phase_deadlines(config: RunConfig) -> dict[str, float]:
    """Seconds that each phase may take, over the service's own deadlines, whose messages say more."""
    collect, train, publish = config.rollout.collect_deadline_s, config.train.deadline_s, config.engine.deadline_s
    bounds = {"collect": collect, "score": train, "train": train, "publish": train + publish, "report": train + publish}
    return {phase: bound + 60 for phase, bound in bounds.items()}


def drive_step(
    client: ControlClient,
    step: int,
    deadlines: Mapping[str, float],
    *,
    on_phase: Callable[[str], None] | None = None,
    on_wait: OnWait | None = None,
) -> dict[str, dict[str, Any]]:
    """The five phases of one step, in order; their results by phase."""
    results: dict[str, dict[str, Any]] = {}
    for phase in PHASES:
        if on_phase is not None:
            on_phase(phase)
        results[phase] = client.run_phase(step, phase, deadline_s=deadlines[phase], on_wait=on_wait)
    return results


def drive(
    client: ControlClient,
    run_step: Callable[[int], object],
    reattach: Callable[[], object],
    on_health: Callable[[HealthStatus], None] = stop_if_ill,
) -> ServiceStatus:
    """Run steps until none is left. Which one is next is always asked of the service, which alone knows.

    ``reattach`` is called when the service has fallen silent; it brings the service back, and the step that it then
    asks for is run. ``on_health`` is called after each step that was run here; it may hold the next one, or raise. What a
    step before had found stops nobody: whoever calls ``drive`` again has been told, and wants to go on.

    Raises:
        ControlError: a phase failed.
        HealthStop: of ``on_health``.
        ServiceSilent: the service was lost MAX_RESTARTS times in a row without finishing a step between.
    """
    restarts, last_done = 0, 0
    ran: int | None = None
    while True:
        try:
            status = client.status()
            if status.step > last_done:
                restarts, last_done = 0, status.step
            if ran is not None and status.step >= ran and status.serving:
                ran = None
                on_health(status.health)
            if status.next_step > status.steps:
                return status
            ran = status.next_step
            run_step(ran)
        except ServiceSilent as error:
            restarts += 1
            if restarts > MAX_RESTARTS:
                raise
            log.warning("service_lost", reason=str(error), restart=restarts)
            reattach()
