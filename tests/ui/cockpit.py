"""A Prefect server and worker of this checkout, and short runs on a tiny model through the deployment openclaw/local-cpu."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from flows.local_prefect import LocalPrefect
from openclaw_core.cluster.processes import Processes
from openclaw_core.rundir import RunDir
from openclaw_core.stages import teardown

STEPS = 3
FINAL = ("Completed", "Failed", "Crashed", "Cancelled")
"""States in which a flow run stays."""
DEADLINE_S = 600


@dataclass(frozen=True)
class Cockpit:
    """What the tests know of the server, and what they do with it besides what they do in the browser."""

    prefect: LocalPrefect
    ports: dict[str, int]
    model: Path
    """Directory of the model that the runs ask for; it need not be there yet."""

    @property
    def place(self) -> Path:
        return self.prefect.state

    @property
    def deployment(self) -> str:
        """Its id."""
        return self._get("deployments/name/openclaw/local-cpu")["id"]

    def page_of(self, flow_run_id: str) -> str:
        """URL."""
        return f"{self.prefect.ui}/runs/flow-run/{flow_run_id}"

    @property
    def form(self) -> str:
        """URL of the deployment's form."""
        return f"{self.prefect.ui}/deployments/deployment/{self.deployment}/run"

    def parameters(self, **more: Any) -> dict[str, Any]:
        """Of a run that takes seconds, with its files below ``place``."""
        paths = {"paths.runs": str(self.place / "runs"), "paths.models": str(self.place / "models")}
        model = {"model.name": "tiny", "model.context_length": 512, "model.source": f"file://{self.model}"}
        return {
            "steps": STEPS,
            "rollout": {"batch_size": 4, "max_response_tokens": 12},
            "feeder": {"sessions_in_flight": 4},
            "evaluation": {"problems": 2},
            "ports": self.ports,
            "overrides": {"cluster.ray_object_store_mb": 100, **paths, **model},
        } | more

    def ask_for_run(self, parameters: dict[str, Any]) -> httpx.Response:
        """What the API answers to a run of the deployment."""
        return self._ask("POST", f"deployments/{self.deployment}/create_flow_run", {"parameters": parameters})

    def begin(self, parameters: dict[str, Any]) -> str:
        """Id of a new flow run."""
        answer = self.ask_for_run(parameters)
        assert answer.status_code == 201, answer.text
        return answer.json()["id"]

    def flow_run(self, flow_run_id: str) -> dict[str, Any]:
        return self._get(f"flow_runs/{flow_run_id}")

    def runs(self) -> list[dict[str, Any]]:
        """All flow runs."""
        return self._post("flow_runs/filter", {"limit": 200})

    def wait(self, flow_run_id: str, *states: str) -> dict[str, Any]:
        """The flow run once it is in one of these states."""
        end = time.monotonic() + DEADLINE_S
        while True:
            run = self.flow_run(flow_run_id)
            if run["state_name"] in states:
                return run
            wrong = run["state_name"] in FINAL or time.monotonic() > end
            assert not wrong, f"{run['name']} is {run['state_name']}: {run['state']['message']}"
            time.sleep(0.5)

    def until(self, true: Callable[[], object], what: str) -> None:
        """Wait for it."""
        end = time.monotonic() + DEADLINE_S
        while not true():
            assert time.monotonic() < end, f"waited {DEADLINE_S} s for {what}"
            time.sleep(0.5)

    def artifacts(self, flow_run_id: str) -> dict[str, dict[str, Any]]:
        """Those with a key, by it."""
        wanted = {"flow_runs": {"id": {"any_": [flow_run_id]}}}
        found = self._post("artifacts/filter", wanted)
        return {artifact["key"]: artifact for artifact in found if artifact["key"]}

    def clear(self) -> None:
        """End what runs have left up."""
        for directory in (self.place / "runs").glob("*"):
            run = RunDir(directory)
            if run.config_file.exists() and Processes(run.processes).alive():
                teardown(run.config(), run)

    def _get(self, path: str) -> Any:
        return self._ask("GET", path).raise_for_status().json()

    def _post(self, path: str, body: dict[str, Any]) -> Any:
        return self._ask("POST", path, body).raise_for_status().json()

    def _ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> httpx.Response:
        """503 is the answer while another writes to SQLite; Prefect's own clients ask again, too."""
        end = time.monotonic() + 30
        while True:
            answer = httpx.request(method, f"{self.prefect.api}/{path}", json=body, timeout=30)
            if answer.status_code != 503 or time.monotonic() > end:
                return answer
            time.sleep(0.5)
