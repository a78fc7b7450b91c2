"""The stages of a run as plain functions, in order; the Prefect tasks and `openclaw-rl run` call the same ones.

Each takes the configuration and the run directory, may be called again at any time (what is there is reused), and
returns a small JSON-able result that says what it did.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Literal, Protocol, TypedDict

import structlog

from openclaw_core.cluster.checks import check_machine
from openclaw_core.cluster.job import ServiceJob
from openclaw_core.cluster.runtime import runtime_of
from openclaw_core.config import RunConfig
from openclaw_core.errors import OpenClawError
from openclaw_core.evaluation import evaluate as ask
from openclaw_core.evaluation.beside import stop_trials
from openclaw_core.loop.client import ControlClient, ControlError, ServiceSilent, ServiceStatus
from openclaw_core.rundir import RunDir
from openclaw_core.weights.hub import hub_access
from openclaw_core.weights.layout import hf_directory, torch_dist_directory
from openclaw_core.weights.sources import fetch_model

log = structlog.get_logger(__name__)

POLL_S = 1.0
SAY_EVERY_S = 15.0


class StageError(OpenClawError):
    """A stage could not do its work; the message says what was wrong and what to do."""


class StageResult(TypedDict):
    """What a stage did, in words for people."""

    stage: str
    status: Literal["done", "reused", "skipped"]
    detail: str


class Row(Protocol):
    """What a check found: its text, and whether it is as it must be."""

    @property
    def check(self) -> str: ...

    @property
    def ok(self) -> bool: ...

    def __str__(self) -> str: ...


Stage = Callable[[RunConfig, RunDir], StageResult]


def build_image(config: RunConfig, run: RunDir) -> StageResult:
    """Build the container image of the cluster's hosts. Raises ClusterError."""
    if not config.cluster.containers:
        return _without_containers("build-image", config)
    if config.cluster.build is None:
        detail = f"cluster.build is not set: image {config.cluster.image} must be on a host already"
        return {"stage": "build-image", "status": "skipped", "detail": detail}
    return _on_hosts("build-image", _host_stages().build_image, config, run)


def distribute_image(config: RunConfig, run: RunDir) -> StageResult:
    """Bring the image, and this project's code, to every host. Raises ClusterError."""
    if not config.cluster.containers:
        return _without_containers("distribute-image", config)
    return _on_hosts("distribute-image", _host_stages().distribute_image, config, run)


def download_model(config: RunConfig, run: RunDir) -> StageResult:
    """Fetch the model's files and write them as a Hugging Face directory. Raises WeightsError, ClusterError."""
    if config.cluster.containers:
        return _on_hosts("download-model", _host_stages().download_model, config, run)
    return download_here(config)


def download_here(config: RunConfig) -> StageResult:
    """``download_model`` on this machine, or inside a container on a host. Raises WeightsError."""
    mirrors = config.model.mirrors
    fetched = fetch_model(config.model.source, hf_directory(config), _say("download-model"), hub=lambda: hub_access(mirrors))
    return {
        "stage": "download-model",
        "status": "reused" if fetched.reused else "done",
        "detail": f"{config.model.source} is in {fetched.path}",
    }


def convert_checkpoint(config: RunConfig, run: RunDir) -> StageResult:
    """Convert the model to the trainer's format. Raises WeightsError, ClusterError."""
    if config.cluster.containers:
        return _on_hosts("convert-checkpoint", _host_stages().convert_checkpoint, config, run)
    return convert_here(config)


def convert_here(config: RunConfig) -> StageResult:
    """``convert_checkpoint`` on this machine, or inside a container on a host. Raises WeightsError."""
    # Brings in torch, which no other stage of this process needs.
    from openclaw_core.weights.convert import convert_checkpoint as convert

    converted = convert(hf_directory(config), torch_dist_directory(config), config.model.dtype, _say("convert-checkpoint"))
    return {
        "stage": "convert-checkpoint",
        "status": "reused" if converted.reused else "done",
        "detail": f"weights in {config.model.dtype} are in {converted.path}",
    }


def env_check(config: RunConfig, run: RunDir) -> StageResult:
    """Check this machine and the hosts (``look_at_everything``). Raises StageError with every row that is not right."""
    return env_verdict(look_at_everything(config, run))


def look_at_everything(config: RunConfig, run: RunDir) -> Sequence[Row]:
    """This machine (cluster/checks.py), then the hosts (cluster/host_checks). Never raises for what it finds.

    Raises ClusterError: no stage has brought this project's code to the hosts yet.
    """
    rows: list[Row] = list(check_machine(config, run))
    if config.cluster.containers:
        rows += _host_stages().env_check(config, run)
    return rows


def env_verdict(rows: Sequence[Row]) -> StageResult:
    """The stage's result for rows that were looked at already. Raises StageError with every row that is not right."""
    wrong = [str(row) for row in rows if not row.ok]
    if wrong:
        raise StageError("\n".join(wrong))
    return {"stage": "env-check", "status": "done", "detail": f"{len(rows)} checks passed"}


def launch_ray(config: RunConfig, run: RunDir, *, unchanged: bool = False) -> StageResult:
    """Start the run's Ray, or take the one that is alive; ``unchanged``: see Runtime.launch. Raises ClusterError."""
    with runtime_of(config, run) as runtime:
        reused, where = runtime.launch(unchanged=unchanged)
    return {"stage": "launch-ray", "status": "reused" if reused else "done", "detail": where}


PREPARE: tuple[tuple[str, Stage], ...] = (
    ("build-image", build_image),
    ("distribute-image", distribute_image),
    ("download-model", download_model),
    ("convert-checkpoint", convert_checkpoint),
    ("env-check", env_check),
    ("launch-ray", launch_ray),
)
"""What comes before training, in order."""


def attach_service(config: RunConfig, run: RunDir) -> StageResult:
    """Have a training service: the one that answers, the one that is starting, or a new one; and wait until it is ready.

    Raises:
        StageError: it ended or was not ready within cluster.start_deadline_s; with its last log lines.
        ClusterError: Ray does not answer.
    """
    with ControlClient.of(run, config) as client, runtime_of(config, run) as runtime:
        status = _status_now(client)
        if status is not None and status.serving:
            return {"stage": "service", "status": "reused", "detail": f"at step {status.step} of {status.steps}"}
        job = ServiceJob(config, run)
        if not job.active:
            log.info("service_submitted", job=job.submit(runtime.service_command()))
        status = _wait_ready(config, client, job)
    return {"stage": "service", "status": "done", "detail": f"ready at step {status.step} of {status.steps}"}


def restart_service(config: RunConfig, run: RunDir) -> StageResult:
    """End a service that has fallen silent, with its Ray head if that is gone too, and submit it again."""
    launch_ray(config, run, unchanged=True)  # in the middle of a run: an edit of the checkout is no part of it
    ServiceJob(config, run).stop()
    return attach_service(config, run)


def evaluate(config: RunConfig, run: RunDir, label: str) -> StageResult:
    """Ask the held-out problems and keep the report as evaluation/<label>.json. Raises EvaluationError, FeederError."""
    stage = f"evaluate-{label}"
    reused = (run.evaluation / f"{label}.json").exists()
    total = asyncio.run(ask(config, config.gateway_url, run.secrets().api_key, run.evaluation, label)).total
    low, high = total.satisfied_interval
    detail = f"satisfied {total.satisfied_share:.3f} [{low:.3f}, {high:.3f}], relevant {total.relevant_share:.3f} of {total.n}"
    return {"stage": stage, "status": "reused" if reused else "done", "detail": detail}


def export(config: RunConfig, run: RunDir) -> StageResult:
    """Have the service write the published weights in Hugging Face form. Raises ControlError."""
    with ControlClient.of(run, config) as client:
        made = client.export()
    return {
        "stage": "export",
        "status": "done",
        "detail": f"version {made['version']} in {made['path']}, checksum {made['checksum']}",
    }


def teardown(config: RunConfig, run: RunDir) -> StageResult:
    """Stop feeder, trials, service and Ray. The service ends its phase and writes a checkpoint first."""
    stop_trials(run)
    with runtime_of(config, run) as runtime:
        runtime.stop_feeder()
        was_alive = runtime.ray_alive()
        ended = _end_service(config, run) if was_alive else f"nothing of run {run.run_id} is running"
        runtime.keep_logs()
        stopped = runtime.stop()
    if not was_alive:
        return {"stage": "teardown", "status": "skipped", "detail": ended}
    return {"stage": "teardown", "status": "done", "detail": f"{ended}; {stopped}; logs are in {run.logs}"}


def _end_service(config: RunConfig, run: RunDir) -> str:
    """Ask the service to stop and wait for it, as long as its longest phase may take."""
    with ControlClient.of(run, config) as client:
        try:
            client.shutdown()
        except ServiceSilent:
            return "no service was running"
        end = time.monotonic() + config.train.deadline_s
        while time.monotonic() < end:
            try:
                client.status(silence_s=0)
            except ServiceSilent:
                return "the service has stopped"
            except ControlError as error:  # parts of it are closed already
                log.info("service_stopping", answer=str(error))
            time.sleep(POLL_S)
    return f"the service did not stop within {config.train.deadline_s:g} s and was ended"


def _status_now(client: ControlClient) -> ServiceStatus | None:
    try:
        return client.status(silence_s=0)
    except ServiceSilent:
        return None


def _wait_ready(config: RunConfig, client: ControlClient, job: ServiceJob) -> ServiceStatus:
    deadline_s = config.cluster.start_deadline_s
    started = said = time.monotonic()
    doing = ""
    while (now := time.monotonic()) - started < deadline_s:
        status = _status_now(client)
        if status is not None and status.waiting_for != doing:
            doing, started = status.waiting_for, now  # each step that is replayed is progress
        if status is not None and status.serving:
            return status
        if not job.active:
            raise StageError(f"the training service ended while it was starting; its last lines:\n{job.tail()}")
        if now - said > SAY_EVERY_S:
            said = now
            waiting_for = "the service's process" if status is None else status.waiting_for
            log.info("service_starting", waiting_for=waiting_for, seconds=round(now - started), deadline_s=deadline_s)
        time.sleep(POLL_S)
    raise StageError(
        f"the training service was not ready, and made no progress, within cluster.start_deadline_s={deadline_s:g}; "
        f"its last lines:\n{job.tail()}"
    )


def _without_containers(stage: str, config: RunConfig) -> StageResult:
    return {"stage": stage, "status": "skipped", "detail": f"preset {config.preset} has no containers"}


def _host_stages() -> ModuleType:
    """Brings in docker, which a run on this machine does without."""
    from openclaw_core.cluster import host_stages as module

    return module


def _on_hosts(
    stage: str, do: Callable[[RunConfig, RunDir, Callable[[str], None]], tuple[bool, str]], config: RunConfig, run: RunDir
) -> StageResult:
    reused, detail = do(config, run, _say(stage))
    return {"stage": stage, "status": "reused" if reused else "done", "detail": detail}


def _say(stage: str) -> Callable[[str], None]:
    return lambda line: log.info("progress", stage=stage, line=line)
