"""A run on the simulated hosts that goes on in a thread of its own, so that a test can disturb it."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx

from openclaw_core import stages
from openclaw_core.cluster.simulation import Simulation
from openclaw_core.cluster.simulation.cluster import as_overrides, simulated_cluster
from openclaw_core.cluster.simulation.image import sim_build_context
from openclaw_core.config import load_config
from openclaw_core.config.schema import RunConfig
from openclaw_core.loop.client import ControlClient, ServiceSilent, ServiceStatus
from openclaw_core.loop.summary import Summary
from openclaw_core.run import run_all
from openclaw_core.rundir import RunDir


def tiny_run(hosts: Simulation, model: Path, place: Path, **settings: Any) -> RunConfig:
    """2nodes-sim on these hosts with a tiny model; ``settings`` by name, dots written as two underscores."""
    cluster = as_overrides(simulated_cluster(hosts, sim_build_context(place / "sim")))
    cluster["cluster.mounts"].append({"source": str(model), "target": "/model"})
    tiny = {"model.name": "tiny", "model.source": "file:///model", "model.context_length": 512}
    sizes = {"rollout.max_response_tokens": 12, "feeder.sessions_in_flight": 4, "paths.runs": str(place / "runs")}
    given = {name.replace("__", "."): value for name, value in settings.items()}
    return load_config("2nodes-sim", {**cluster, **tiny, **sizes, **given})


class Going:
    """``run_all`` on a run, begun with the block. Its driver can be held, which the service does not notice."""

    def __init__(self, run: RunDir) -> None:
        self.config, self.run = run.config(), run
        self.told: list[str] = []
        self._hold: str | None = None
        self._held, self._released = threading.Event(), threading.Event()
        self._pool = ThreadPoolExecutor(max_workers=1)

    def __enter__(self) -> Going:
        self._future = self._pool.submit(run_all, self.config, self.run, self._tell)
        return self

    def __exit__(self, *_error: object) -> None:
        self.go_on()
        self._pool.shutdown()
        if self._future.exception() is not None:
            stages.teardown(self.config, self.run)

    def end(self) -> Summary:
        """Its result. Raises what ended it."""
        return self._future.result()

    def wait_for(self, seen: Callable[[ServiceStatus], bool], deadline_s: float) -> ServiceStatus:
        """Until the service says so."""
        found: list[ServiceStatus] = []

        def look() -> bool:
            try:
                found.append(client.status(silence_s=0))
            except ServiceSilent:
                return False
            return seen(found[-1])

        with ControlClient.of(self.run, self.config) as client:
            self._until(look, deadline_s)
        return found[-1]

    def go_on(self, until: str | None = None) -> None:
        """Let the driver go on to the end, or until it is about to begin a phase, as in "step 2/3: train"."""
        self._hold = until
        self._held.clear()
        released, self._released = self._released, threading.Event()
        released.set()

    def until_held(self, deadline_s: float = 600) -> None:
        """Until the driver is where it was told to stop."""
        self._until(self._held.is_set, deadline_s)

    def until_before(self, phase: str, deadline_s: float = 600) -> None:
        """Let the driver go on, and wait until it is about to begin the phase."""
        self.go_on(phase)
        self.until_held(deadline_s)

    def has_begun(self, phase: str) -> bool:
        """Whether the driver has asked for the phase."""
        return phase in self.told

    def engines(self) -> dict[str, bool]:
        """Which can be asked, by the gateway's word."""
        text = httpx.get(self.config.gateway_url.removesuffix("/v1") + "/metrics", trust_env=False).raise_for_status().text
        found = re.findall(r'^openclaw_engine_ready{engine="(.+)"} (\S+)$', text, flags=re.MULTILINE)
        return {name: float(value) == 1 for name, value in found}

    def until_engines(self, ready: dict[str, bool], deadline_s: float = 180) -> None:
        """Until these can be asked, and these cannot."""
        self._until(lambda: self.engines() == ready, deadline_s)

    def answer(self) -> str:
        """Of the gateway, to a question beside the training."""
        body = {
            "model": self.config.model.name,
            "messages": [{"role": "user", "content": "How much is 2 + 3?"}],
            "max_tokens": 8,
        }
        key = {"Authorization": f"Bearer {self.run.secrets().api_key}", "X-Turn-Type": "side"}
        url = f"{self.config.gateway_url}/chat/completions"
        reply = httpx.post(url, json=body, headers=key, timeout=120, trust_env=False).raise_for_status()
        return reply.json()["choices"][0]["finish_reason"]

    def _tell(self, line: str) -> None:
        self.told.append(line)
        released = self._released
        if line == self._hold:
            self._held.set()
            released.wait()

    def _until(self, condition: Callable[[], bool], deadline_s: float) -> None:
        end = time.monotonic() + deadline_s
        while not condition():
            assert not self._future.done(), self._future.result()
            assert time.monotonic() < end, f"not seen within {deadline_s:g} s; the last lines were {self.told[-3:]}"
            time.sleep(0.5)
