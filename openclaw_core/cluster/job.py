"""The training service as a Ray job: ``<run>-<attempt>``, submitted again under the next number when it has ended."""

from __future__ import annotations

import shlex
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import requests
from ray.dashboard.modules.job.pydantic_models import JobDetails
from ray.job_submission import JobStatus, JobSubmissionClient

from openclaw_core.cluster.errors import ClusterError
from openclaw_core.cluster.ray_head import auth_header, dashboard_url, driver_log
from openclaw_core.config import RunConfig
from openclaw_core.rundir import RunDir

NO_AGENT = "No available agent"
"""What Ray's job API says while no node can start jobs yet."""
AGENT_DEADLINE_S = 120.0
ABORTED, ABORTED_TRIES = "Connection aborted", 3
"""A busy dashboard drops a connection now and then; the same question is then asked again."""


class ServiceJob:
    """The service's latest job on the run's Ray.

    Raises:
        ClusterError: (every method) Ray's job API does not answer or refuses.
    """

    def __init__(self, config: RunConfig, run: RunDir) -> None:
        self.run = run
        self._url = dashboard_url(config)
        self._client: JobSubmissionClient = self._ask(lambda: JobSubmissionClient(self._url, headers=auth_header(run)))

    def status(self) -> JobStatus | None:
        """Of the latest attempt; None before the first one."""
        latest = self._latest()
        return latest.status if latest else None

    @property
    def active(self) -> bool:
        """True while the latest attempt is starting or running."""
        status = self.status()
        return status is not None and not status.is_terminal()

    def submit(self, command: Sequence[str]) -> str:
        """Start the next attempt, which runs ``command``, and return its submission id."""
        latest = self._latest()
        attempt = 1 + max(_attempt(latest) if latest else 0, kept_attempts(self.run))
        # passive: OpenMP threads that wait in a loop take the cores from whoever's turn it is.
        environment = {"env_vars": {"OMP_WAIT_POLICY": "passive", "PYTHONUNBUFFERED": "1"}}
        submission_id = f"{self.run.run_id}-{attempt}"
        end = time.monotonic() + AGENT_DEADLINE_S
        while True:
            try:
                return self._ask(
                    lambda: self._client.submit_job(
                        entrypoint=f"exec {shlex.join(command)}", submission_id=submission_id, runtime_env=environment
                    )
                )
            except ClusterError as error:
                if f"{submission_id} already exists" in str(error):  # it was taken, and its answer was lost
                    return submission_id
                # The dashboard answers before the agent that starts jobs is there; on a busy machine, long before.
                if NO_AGENT not in str(error) or time.monotonic() > end:
                    raise
            time.sleep(0.5)

    def stop(self, deadline_s: float = 60) -> None:
        """End the latest attempt, if it is active: SIGTERM by Ray, then SIGKILL. Raises ClusterError at the deadline."""
        latest = self._latest()
        if latest is None or latest.submission_id is None or not self.active:
            return
        submission_id = latest.submission_id
        self._ask(lambda: self._client.stop_job(submission_id))
        end = time.monotonic() + deadline_s
        while self.active:
            if time.monotonic() > end:
                raise ClusterError(f"job {submission_id} has not stopped within {deadline_s:g} s")
            time.sleep(0.5)

    def tail(self, lines: int = 40) -> str:
        """The last lines that the latest attempt wrote, its exception included."""
        latest = self.latest_log()
        return "\n".join(latest[1].splitlines()[-lines:]) if latest is not None else ""

    def latest_log(self) -> tuple[int, str] | None:
        """Number of the latest attempt, and all that it wrote so far; None before the first one."""
        latest = self._latest()
        if latest is None or latest.submission_id is None:
            return None
        submission_id = latest.submission_id
        text: str = self._ask(lambda: self._client.get_job_logs(submission_id))
        return _attempt(latest), text

    def keep_logs(self) -> None:
        """Write what every attempt wrote so far into the run's logs, as service-<attempt>.log."""
        for job in self._ours():
            submission_id = job.submission_id or ""
            text: str = self._ask(lambda submission_id=submission_id: self._client.get_job_logs(submission_id))
            kept_log(self.run, _attempt(job)).write_text(text, encoding="utf-8")

    def _latest(self) -> JobDetails | None:
        return max(self._ours(), key=_attempt, default=None)

    def _ours(self) -> list[JobDetails]:
        jobs: list[JobDetails] = self._ask(self._client.list_jobs)
        return [job for job in jobs if job.submission_id and job.submission_id.startswith(f"{self.run.run_id}-")]

    def _ask(self, call: Callable[[], Any]) -> Any:
        for tries_left in reversed(range(ABORTED_TRIES)):
            try:
                return call()
            except (ConnectionError, requests.RequestException, RuntimeError) as error:
                if not tries_left or ABORTED not in str(error):
                    raise ClusterError(f"Ray's job API on {self._url} (ports.ray_dashboard): {error}") from error
            time.sleep(1)
        raise AssertionError("the last try returns or raises")


def keep_driver_logs(run: RunDir) -> None:
    """The same for a Ray of this machine, alive or not: out of its temporary files."""
    for file in driver_log(run, f"{run.run_id}-*").parent.glob(f"job-driver-{run.run_id}-*.log"):
        shutil.copyfile(file, kept_log(run, int(file.stem.rpartition("-")[2])))


def kept_log(run: RunDir, attempt: int) -> Path:
    """Where the log of an attempt of the service is kept."""
    return run.logs / f"service-{attempt}.log"


def _attempt(job: JobDetails) -> int:
    return int((job.submission_id or "").rpartition("-")[2])


def kept_attempts(run: RunDir) -> int:
    """How many attempts have a log that is kept: the next one has a higher number."""
    return max((int(file.stem.rpartition("-")[2]) for file in run.logs.glob("service-*.log")), default=0)
