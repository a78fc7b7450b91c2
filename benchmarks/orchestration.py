"""What Prefect adds to a rollout step: every step is a monitored run of its own, with a task a phase and its artifacts.

Usage: python -m benchmarks.orchestration [--steps N] [--sleep S]

A real Prefect server, started as `make run` starts it, and a control API that trains nothing: its phases sleep, each for the
share of the step that it took in a real run. The same steps are driven without Prefect, as `openclaw-rl run` does, before and
after; what the orchestrated ones take longer is their orchestration. The metrics that the steps report are those of that run,
so that tables and plots have their true size.

With `--sleep 0` a step begins while the server still works on the events of the one before, which no real step does.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sqlite3
import tempfile
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import closing, contextmanager
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from prefect import flow, task
from prefect.settings import PREFECT_API_URL, temporary_settings

from flows.local_prefect import EVENTS_KEPT_S, LocalPrefect, stop_prefect
from flows.train_loop import drive_steps
from openclaw_core.config import load_config
from openclaw_core.loop.client import ControlClient, drive, drive_step, phase_deadlines
from openclaw_core.rundir import RunDir, create_run
from tasks.reporting import run_shown
from tests.control_stub import StubService
from tests.ports import free_ports

METRICS = Path(__file__).resolve().parent.parent / "tests/health_recordings/local_cpu.jsonl"
"""A row a step, of a run of local-cpu."""
EXPIRING_STEPS = 120
"""Of 60 s, whose events of tasks are there at a time: the server looks every hour for those that are over an hour old."""
FLUSH_S = 15.0
"""Within which the server has written the last events."""
TARGETS = {"median_ms": 200.0, "p95_ms": 500.0, "share_of_60_s": 0.01, "database_mb_2000_steps": 200.0}


class SleepingService(StubService):
    """Steps of ``sleep_s`` seconds with the metrics of a real run and its phases' shares, and when each of them began."""

    def __init__(self, steps: int, token: str, sleep_s: float) -> None:
        super().__init__(steps, token)
        self._sleep_s = sleep_s
        rows = [json.loads(line) for line in METRICS.read_text().splitlines()]
        self._metrics = [{name: row[name] for name in row.keys() - {"step", "version"}} for row in rows]
        self.began: list[float] = []

    def _sleep_of(self, step: int, phase: str) -> float:
        """Seconds; what the recorded step spent outside the phases counts as report."""
        row = self.metrics(step)
        shares = {each: row[f"perf/{each}_time"] / row["perf/step_time"] for each in ("collect", "score", "train", "publish")}
        return self._sleep_s * (shares | {"report": max(0.0, 1 - sum(shares.values()))})[phase]

    def run_phase(self, step: int, phase: str) -> dict[str, Any]:
        if phase == "collect":
            self.began.append(time.monotonic())
        time.sleep(self._sleep_of(step, phase))
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


def _measure(way: Callable[[str], None], root: Path, name: str, steps: int, sleep_s: float) -> list[float]:
    config = load_config("local-cpu", {"paths.runs": str(root), "train.steps": steps, **free_ports()})
    run = create_run(config, name)
    service = SleepingService(steps, run.secrets().control_token, sleep_s)
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


def _database_bytes(state: Path, without: Collection[str] = ()) -> int:
    """Of Prefect's database, without free pages and without events of these kinds."""
    copy = state / "copy.db"
    with closing(sqlite3.connect(state / "prefect/prefect.db")) as database:
        database.execute("VACUUM INTO ?", (str(copy),))
    with closing(sqlite3.connect(copy, isolation_level=None)) as database:
        kinds = ", ".join("?" * len(without))
        which = f"SELECT id FROM events WHERE event IN ({kinds})"
        database.execute(f"DELETE FROM event_resources WHERE event_id IN ({which})", tuple(without))
        database.execute(f"DELETE FROM events WHERE id IN ({which})", tuple(without))
        database.execute("VACUUM")
    size = copy.stat().st_size
    copy.unlink()
    return size


def _quantile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=100, help="Orchestrated steps; a quarter of them is driven directly.")
    parser.add_argument("--sleep", type=float, default=2.0, help="Seconds that a step takes by itself.")
    given = parser.parse_args()
    steps, sleep_s = given.steps, given.sleep
    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.2f}")
    with tempfile.TemporaryDirectory(prefix="orchestration-") as place:
        root, state = Path(place) / "runs", Path(place) / "state"
        direct = _measure(_direct, root, "direct-before", steps // 4, sleep_s)
        with _prefect(state):
            before = _database_bytes(state), _database_bytes(state, EVENTS_KEPT_S)
            orchestrated = _measure(_orchestrated, root, "orchestrated", steps, sleep_s)
            time.sleep(FLUSH_S)
            after = _database_bytes(state), _database_bytes(state, EVENTS_KEPT_S)
        direct += _measure(_direct, root, "direct-after", steps // 4, sleep_s)
    whole, kept = ((end - begin) / steps for begin, end in zip(before, after, strict=True))
    added = [period - median(direct) for period in orchestrated]
    found = {
        "median_ms": median(added),
        "p95_ms": _quantile(added, 0.95),
        "share_of_60_s": sum(added) / len(added) / 60_000,
        "database_mb_2000_steps": (kept * 2000 + (whole - kept) * EXPIRING_STEPS) / 1e6,
    }
    print(f"a step driven directly: {median(direct):.1f} ms; as a run of Prefect's: {median(orchestrated):.1f} ms")
    print(f"database: {whole / 1000:.0f} kB a step, {kept / 1000:.0f} kB of them for longer than an hour")
    for name, target in TARGETS.items():
        print(f"{name:<24} {found[name]:10.4g}   at most {target:g}")
    ratio = median(orchestrated) / median(direct)
    ok = all(found[name] <= target for name, target in TARGETS.items())
    print(json.dumps({"steps": steps, "sleep_s": sleep_s, **found, "ratio": ratio, "ok": ok}))


if __name__ == "__main__":
    main()
