"""The Ray head of a run: one owned process that outlives the driver, reused while it is alive, ended by its recorded pid."""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import time
from pathlib import Path

import httpx

from openclaw_core.cluster.errors import ClusterError
from openclaw_core.cluster.ports import RAY_PORTS, check_ports
from openclaw_core.cluster.processes import OwnedProcess, Processes
from openclaw_core.config import RunConfig
from openclaw_core.rundir import RunDir, list_runs

NAME = "ray-head"


def start_head(config: RunConfig, run: RunDir, deadline_s: float = 90) -> bool:
    """Start the run's Ray head and wait until its job API answers. True if it was alive already and is reused.

    Raises:
        ClusterError: a port is taken, or the head ended or did not answer within ``deadline_s``; with its last log lines.
    """
    processes = Processes(run.processes)
    head = processes.find(NAME)
    reused = head is not None
    if head is None:
        check_ports(config.ports, RAY_PORTS)
        _private_temp(run)
        head = processes.start(NAME, _command(config, run), log_file=run.logs / f"{NAME}.log", env=_environment(run))
    _wait_until_up(config, run, head, deadline_s)
    return reused


def find_head(run: RunDir) -> OwnedProcess | None:
    """The run's Ray head, if it is alive."""
    return Processes(run.processes).find(NAME)


def runs_up(runs: Path) -> list[RunDir]:
    """Those below ``runs`` whose Ray head is alive on this machine: at work, suspended, or left for a retry."""
    return [run for run in list_runs(runs) if find_head(run) is not None]


def stop_head(run: RunDir) -> bool:
    """End the head with everything on it and remove its temporary files. False if it was not running."""
    stopped = Processes(run.processes).stop(NAME, grace_s=20)
    shutil.rmtree(_temp(run), ignore_errors=True)
    return stopped


def dashboard_url(config: RunConfig) -> str:
    """Where Ray's dashboard and job API listen."""
    return f"http://{config.cluster.head_address}:{config.ports.ray_dashboard}"


def auth_header(run: RunDir) -> dict[str, str]:
    """Ray's HTTP API refuses requests without it."""
    return {"Authorization": f"Bearer {run.secrets().ray_token}"}


def driver_log(run: RunDir, submission_id: str) -> Path:
    """The file Ray writes a job's output to."""
    return _ray_temp(run) / "session_latest" / "logs" / f"job-driver-{submission_id}.log"


def _command(config: RunConfig, run: RunDir) -> list[str]:
    ports = config.ports
    # Slots for threads rather than cores: trainer and engine take turns on the cores, and each claims its threads.
    ranks = config.train.tensor_parallel * config.train.data_parallel
    slots = 1 + config.train.threads * ranks + config.engine.threads * config.engine.count
    options = {
        "--port": ports.ray_gcs,
        "--dashboard-host": "127.0.0.1",
        "--dashboard-port": ports.ray_dashboard,
        "--ray-client-server-port": ports.ray_client,
        # 0: any free port, so that the defaults of another Ray on this machine are no hindrance.
        "--dashboard-agent-listen-port": 0,
        "--dashboard-agent-grpc-port": 0,
        "--min-worker-port": 0,
        "--max-worker-port": 0,
        "--num-cpus": slots,
        "--object-store-memory": config.cluster.ray_object_store_mb * 1_000_000,
        "--temp-dir": _ray_temp(run),
    }
    flags = [f"{name}={value}" for name, value in options.items()]
    return [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block", "--disable-usage-stats", *flags]


def _environment(run: RunDir) -> dict[str, str]:
    return {
        # GCS and raylet listen on every interface whatever the options say: the token is what keeps others out.
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": run.secrets().ray_token,
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
        # No metrics export: nobody scrapes it, and it wakes the cores that train.
        "RAY_enable_open_telemetry": "0",
        "NO_COLOR": "1",
    }


def _temp(run: RunDir) -> Path:
    # Short and outside the run directory: a Unix socket's path may have 107 characters.
    digest = hashlib.sha256(str(run.path.absolute()).encode()).hexdigest()[:10]
    return Path("/tmp") / f"openclaw-{os.getuid()}-{digest}"


def _ray_temp(run: RunDir) -> Path:
    return _temp(run) / "ray"


def _private_temp(run: RunDir) -> None:
    """Ray opens its directory to everybody, so it gets a parent that only its owner may enter."""
    temp = _temp(run)
    temp.mkdir(mode=0o700, exist_ok=True)
    status = temp.lstat()
    if temp.is_symlink() or status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise ClusterError(f"{temp} is not a private directory of this user; remove it")


def _wait_until_up(config: RunConfig, run: RunDir, head: OwnedProcess, deadline_s: float) -> None:
    end = time.monotonic() + deadline_s
    reason = "no answer yet"
    while time.monotonic() < end:
        if head.handle() is None:
            raise ClusterError(f"the Ray head ended while it was starting ({head.log}):\n{head.log_tail()}")
        try:
            answer = httpx.get(f"{dashboard_url(config)}/api/version", headers=auth_header(run), timeout=5)
        except httpx.TransportError as error:
            reason = str(error)
        else:
            if answer.status_code == 401 or answer.status_code == 403:
                raise ClusterError(
                    f"{dashboard_url(config)} (ports.ray_dashboard) belongs to a Ray of another run: it refuses our token"
                )
            if answer.is_success:
                return
            reason = f"HTTP {answer.status_code}"
        time.sleep(0.3)
    raise ClusterError(
        f"the Ray head (pid {head.pid}) has not answered on {dashboard_url(config)} within {deadline_s:g} s: {reason}"
    )
