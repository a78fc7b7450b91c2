"""A Prefect server and a process worker of this checkout: started once, reused while they are alive, ended by recorded pid."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import httpx
from prefect.settings import PREFECT_API_URL, temporary_settings

from openclaw_core.cluster.errors import ClusterError
from openclaw_core.cluster.ports import check_ports
from openclaw_core.cluster.processes import OwnedProcess, Processes
from openclaw_core.config import RunConfig
from openclaw_core.config.env import child_environment

HOME = Path(__file__).resolve().parent.parent
POOL = "openclaw"
SERVER, WORKER = "prefect-server", "prefect-worker"


class LocalPrefect:
    """Server and worker with everything they keep below ``state``."""

    def __init__(self, state: Path, port: int) -> None:
        self.state, self.port = state.absolute(), port
        self.ui = f"http://127.0.0.1:{port}"
        self.api = f"{self.ui}/api"
        self._processes = Processes(self.state / "processes")

    def start(self, config: RunConfig) -> None:
        """Bring up server, pool, blocks, deployments and worker; what is up already is kept.

        Raises:
            ClusterError: the port is taken by somebody else, or a part does not come up in its time.
        """
        self._start_server(config)
        with temporary_settings({PREFECT_API_URL: self.api}):
            _create_pool()
            _save_blocks(config)
        self._run("deploy", "--all", "--no-prompt")
        if self._processes.find(WORKER) is None:
            self._processes.start(
                WORKER, self._command("worker", "start", "--pool", POOL, "--type", "process"), **self._rim(WORKER)
            )

    def stop(self) -> list[str]:
        """End worker and server; the names of those that were running."""
        return [name for name in (WORKER, SERVER) if self._processes.stop(name, grace_s=20)]

    def alive(self) -> list[OwnedProcess]:
        """What is running."""
        return self._processes.alive()

    @property
    def serving(self) -> bool:
        """True if our server answers."""
        return self._processes.find(SERVER) is not None and self._healthy()

    def _start_server(self, config: RunConfig) -> None:
        server = self._processes.find(SERVER)
        if server is None:
            check_ports(config.ports, ["prefect"])
            command = self._command("server", "start", "--host", "127.0.0.1", "--port", str(self.port))
            server = self._processes.start(SERVER, command, **self._rim(SERVER))
        end = time.monotonic() + 120
        while not self._healthy():
            if server.handle() is None:
                raise ClusterError(f"the Prefect server ended while it was starting ({server.log}):\n{server.log_tail()}")
            if time.monotonic() > end:
                raise ClusterError(
                    f"the Prefect server (pid {server.pid}, {server.log}) does not answer on {self.api}. If it was started with "
                    "another ports.prefect, give that one, or run `make stop` first"
                )
            time.sleep(0.5)

    def _healthy(self) -> bool:
        try:
            return httpx.get(f"{self.api}/health", timeout=5).is_success
        except httpx.TransportError:
            return False

    def _run(self, *arguments: str) -> None:
        """A Prefect command to its end. Raises ClusterError with what it said."""
        environment = child_environment(self._environment())
        done = subprocess.run(
            self._command(*arguments), cwd=HOME, env=environment, capture_output=True, text=True, timeout=180, check=False
        )
        if done.returncode != 0:
            raise ClusterError(f"`prefect {' '.join(arguments)}` failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")

    def _command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "prefect", *arguments]

    def _rim(self, name: str) -> dict[str, object]:
        return {"log_file": self.state / "logs" / f"{name}.log", "env": self._environment()}

    def _environment(self) -> dict[str, str]:
        return {
            "OPENCLAW_HOME": str(HOME),
            "PREFECT_HOME": str(self.state / "prefect"),
            "PREFECT_API_URL": self.api,
            # Nothing leaves this machine, and the UI is the one that asks nothing of the outside.
            "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
            "DO_NOT_TRACK": "1",
            "PREFECT_SERVER_UI_V2_ENABLED": "false",
            "PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT": "false",
            "PREFECT_WORKER_QUERY_SECONDS": "3",
        }
