"""A Prefect server and a process worker of this checkout: started once, reused while they are alive, ended by recorded pid."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Self

import httpx
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import WorkPoolCreate
from prefect.exceptions import ObjectAlreadyExists
from prefect.settings import PREFECT_API_URL, temporary_settings
from prefect.workers.process import ProcessWorker

import blocks
from blocks import ClusterBlock, ModelBlock
from flows.crashed import keep_automation
from flows.sqlite_writes import with_immediate_writes
from openclaw_core.cluster.errors import ClusterError
from openclaw_core.cluster.ports import check_ports
from openclaw_core.cluster.processes import OwnedProcess, Processes
from openclaw_core.config import RunConfig, load_config
from openclaw_core.config.env import child_environment

HOME = Path(__file__).resolve().parent.parent
PREFECT = (sys.executable, "-m", "prefect")
POOL = "openclaw"
SERVER, WORKER = "prefect-server", "prefect-worker"
START_DEADLINE_S = 120
DEPLOY_DEADLINE_S = 600
"""A few seconds a deployment on a machine that is busy with other things."""
EVENTS_KEPT_S = {f"prefect.task-run.{state}": 3600 for state in ("Pending", "Running", "Completed")}
RECORDER_FLUSH_S = 1
"""How late, in seconds, Prefect's API may know of a task's state."""


class LocalPrefect:
    """Server and worker with everything they keep below ``state``."""

    def __init__(self, state: Path, port: int) -> None:
        self.state = state.absolute()
        self.port = port
        self.ui = f"http://127.0.0.1:{port}"
        self.api = f"{self.ui}/api"
        self._processes = Processes(self.state / "processes")

    @classmethod
    def recorded(cls, state: Path) -> Self | None:
        """The one whose server runs from ``state``, on whichever port it was started; None if there is none."""
        server = Processes(state / "processes").find(SERVER)
        return cls(state, _port(server)) if server else None

    def start(self, config: RunConfig) -> None:
        """Bring up server, pool, blocks, deployments, the automation for crashed runs and worker; what is up already is kept.

        Raises:
            ClusterError: the port is taken by somebody else, or a part does not come up in its time.
        """
        self._start_server(config)
        with temporary_settings({PREFECT_API_URL: self.api}):
            _create_pool()
            _save_blocks()
            keep_automation()
        self._deploy()
        if self._processes.find(WORKER) is None:
            self._launch(WORKER, "worker", "start", "--pool", POOL, "--type", "process")

    @property
    def healthy(self) -> bool:
        """True if the server answers."""
        try:
            return httpx.get(f"{self.api}/health", timeout=5).is_success
        except httpx.TransportError:
            return False

    def _start_server(self, config: RunConfig) -> None:
        server = self._processes.find(SERVER)
        if server is None:
            check_ports(config.ports, ["prefect"])
            server = self._launch(SERVER, "server", "start", "--host", "127.0.0.1", "--port", str(self.port))
        elif _port(server) != self.port:
            here = f"the Prefect server of this checkout runs on port {_port(server)}"
            raise ClusterError(f"{here}; give ports.prefect={_port(server)}, or run `make stop` first")
        end = time.monotonic() + START_DEADLINE_S
        while not self.healthy:
            if server.handle() is None:
                raise ClusterError(f"the Prefect server ended while it was starting ({server.log}):\n{server.log_tail()}")
            if time.monotonic() > end:
                who = f"the Prefect server (pid {server.pid}, {server.log})"
                raise ClusterError(f"{who} has not answered on {self.api} within {START_DEADLINE_S} s")
            time.sleep(0.5)

    def _deploy(self) -> None:
        command, environment = [*PREFECT, "deploy", "--all", "--no-prompt"], child_environment(self._environment())
        done = subprocess.run(
            command, cwd=HOME, env=environment, capture_output=True, text=True, timeout=DEPLOY_DEADLINE_S, check=False
        )
        if done.returncode != 0:
            raise ClusterError(f"`prefect deploy --all` failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")

    def _launch(self, name: str, *arguments: str) -> OwnedProcess:
        log_file = self.state / "logs" / f"{name}.log"
        return self._processes.start(name, [*PREFECT, *arguments], log_file=log_file, env=self._environment())

    def _environment(self) -> dict[str, str]:
        return {
            "OPENCLAW_HOME": str(HOME),
            "PREFECT_HOME": str(self.state / "prefect"),
            "PREFECT_API_URL": self.api,
            "PREFECT_SERVER_DATABASE_CONNECTION_URL": with_immediate_writes(self.state / "prefect/prefect.db"),
            # Nothing leaves this machine, and the UI is the one that asks nothing of the outside.
            "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
            "DO_NOT_TRACK": "1",
            "PREFECT_SERVER_UI_V2_ENABLED": "false",
            "PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT": "false",
            "PREFECT_WORKER_QUERY_SECONDS": "3",
            # In memory, as by default, the server forgets on a restart who holds which host, and counts it as taken for ever.
            "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": "prefect.server.concurrency.lease_storage.filesystem",
            # Events of tasks are kept for an hour: a step has some 90 kB of them, 2,000 steps would have 180 MB.
            "PREFECT_SERVER_SERVICES_DB_VACUUM_EVENT_RETENTION_OVERRIDES": json.dumps(EVENTS_KEPT_S),
            # By itself the server writes each state of a task run with a commit of its own, and events by twenties, in the
            # middle of each step's end: its requests wait for that.
            "PREFECT_SERVER_SERVICES_EVENT_PERSISTER_BATCH_SIZE": "500",
            "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_BATCH_SIZE": "100",
            "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_FLUSH_INTERVAL": str(RECORDER_FLUSH_S),
        }


def _port(server: OwnedProcess) -> int:
    return int(server.command[server.command.index("--port") + 1])


def stop_prefect(state: Path) -> list[str]:
    """End worker and server; the names of those that were running."""
    processes = Processes(state / "processes")
    return [name for name in (WORKER, SERVER) if processes.stop(name, grace_s=20)]


def _create_pool() -> None:
    template = ProcessWorker.get_default_base_job_template()
    with get_client(sync_client=True) as client, contextlib.suppress(ObjectAlreadyExists):
        client.create_work_pool(WorkPoolCreate(name=POOL, type="process", base_job_template=template))


def _save_blocks() -> None:
    """Register the block types and save documents ``local`` of cluster and model; what a person has changed is kept."""
    for name in blocks.__all__:
        getattr(blocks, name).register_type_and_schema()
    model = load_config("local-cpu").model
    documents = (
        ClusterBlock(),
        ModelBlock(model_name=model.name, source=model.source, context_length=model.context_length),
    )
    for document in documents:
        # ValueError: there is a document of that name.
        with contextlib.suppress(ValueError):
            document.save("local")
