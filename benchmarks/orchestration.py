"""What Prefect adds to a rollout step: every step is a monitored run of its own, with a task a phase and its artifacts.

Usage: python -m benchmarks.orchestration [--steps N]

A real Prefect server, started as `make run` starts it, and a control API whose phases take no time: what is left of a step
is its orchestration. The same steps are driven without Prefect, as `openclaw-rl run` does, before and after. The metrics
that the steps report are those of a real run, so that tables and plots have their true size.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from prefect import flow, task
from prefect.settings import PREFECT_API_URL, temporary_settings

from flows.local_prefect import LocalPrefect, stop_prefect
from flows.train_loop import drive_steps
from openclaw_core.config import load_config
from openclaw_core.loop.client import ControlClient, drive, drive_step, phase_deadlines
from openclaw_core.rundir import RunDir, create_run
from tasks.reporting import run_shown
from tests.control_stub import StubService
from tests.ports import free_ports

METRICS = Path(__file__).resolve().parent.parent / "tests/health_recordings/local_cpu.jsonl"
"""A row a step, of a run of local-cpu."""
TARGETS = {"median_ms": 200.0, "p95_ms": 500.0, "share_of_60_s": 0.01, "database_mb_2000_steps": 200.0}


class InstantService(StubService):
    """Phases that take no time, steps with the metrics of a real run, and when each of them began."""

    def __init__(self, steps: int, token: str) -> None:
        super().__init__(steps, token)
        rows = [json.loads(line) for line in METRICS.read_text().splitlines()]
        self._metrics = [{name: row[name] for name in row.keys() - {"step", "version"}} for row in rows]
        self.began: list[float] = []

    def run_phase(self, step: int, phase: str) -> dict[str, Any]:
        if phase == "collect":
            self.began.append(time.monotonic())
        answer = super().run_phase(step, phase)
        if phase == "report":
            answer["result"] |= self.metrics(step)
        return answer

    def metrics(self, step: int) -> dict[str, Any]:
        return self._metrics[(step - 1) % len(self._metrics)]

    def periods_ms(self) -> list[float]:
        """From the begin of a step to that of the next one. The first step is left out: it imports and makes artifacts."""
        return [1000 * (after - before) for before, after in pairwise(self.began[1:])]


@flow(name="orchestration")
def _orchestrated(run_dir: str) -> None:
    @task(name="train-loop")
    def steps() -> None:
        run = RunDir(Path(run_dir))
        config = run.config()
        with run_shown(config, run):
            drive_steps(config, run)

    steps()


def _direct(run_dir: str) -> None:
    run = RunDir(Path(run_dir))
    config = run.config()
    with ControlClient.of(run, config) as client:
        drive(client, lambda step: drive_step(client, step, phase_deadlines(config)), reattach=lambda: None)


def _measure(way: Callable[[str], None], root: Path, name: str, steps: int) -> list[float]:
    config = load_config("local-cpu", {"paths.runs": str(root), "train.steps": steps, **free_ports()})
    run = create_run(config, name)
    service = InstantService(steps, run.secrets().control_token)
    with service.serving(config.ports.control):
        way(str(run.path))
    return service.periods_ms()


@contextmanager
def _prefect(state: Path) -> Iterator[None]:
    config = load_config("local-cpu", free_ports())
    prefect = LocalPrefect(state, config.ports.prefect)
    try:
        prefect.start(config)
        with temporary_settings({PREFECT_API_URL: prefect.api}):
            yield
    finally:
        stop_prefect(state)


def _database_bytes(state: Path) -> int:
    return sum(file.stat().st_size for file in (state / "prefect").glob("prefect.db*"))


def _quantile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=200, help="Orchestrated steps; a quarter of them is driven directly.")
    steps = parser.parse_args().steps
    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.2f}")
    with tempfile.TemporaryDirectory(prefix="orchestration-") as place:
        root, state = Path(place) / "runs", Path(place) / "state"
        direct = _measure(_direct, root, "direct-before", steps // 4)
        with _prefect(state):
            warm = _database_bytes(state)
            orchestrated = _measure(_orchestrated, root, "orchestrated", steps)
        grown = _database_bytes(state) - warm
        direct += _measure(_direct, root, "direct-after", steps // 4)
    added = [period - median(direct) for period in orchestrated]
    found = {
        "median_ms": median(added),
        "p95_ms": _quantile(added, 0.95),
        "share_of_60_s": sum(added) / len(added) / 60_000,
        "database_mb_2000_steps": grown / steps * 2000 / 1e6,
    }
    print(f"a step driven directly: {median(direct):.1f} ms; as a run of Prefect's: {median(orchestrated):.1f} ms")
    for name, target in TARGETS.items():
        print(f"{name:<24} {found[name]:10.4g}   at most {target:g}")
    ratio = median(orchestrated) / median(direct)
    print(json.dumps({"steps": steps, **found, "ratio": ratio, "ok": all(found[k] <= v for k, v in TARGETS.items())}))


if __name__ == "__main__":
    main()
