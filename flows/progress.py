"""What `make run` shows while a run is going on: its stages, and where the training stands."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from openclaw_core.loop.client import ServiceStatus

SAY_AGAIN_S = 20.0
"""On a terminal that cannot be redrawn: how often a line is written though only numbers have changed."""


@dataclass(frozen=True, slots=True)
class StageView:
    """A task of the run: its name, its state's name (Running, Completed, Reused, Skipped, Cached, Failed …) and its message."""

    name: str
    state: str
    message: str

    @property
    def ended(self) -> bool:
        return self.state in ("Completed", "Reused", "Skipped", "Cached")

    def __str__(self) -> str:
        return f"{self.name}: {self.state.lower()}" + (f", {self.message}" if self.message else "")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The run at one moment. ``service`` is None while nobody answers on the control port."""

    stages: tuple[StageView, ...]
    service: ServiceStatus | None

    @property
    def current(self) -> str | None:
        """The innermost stage at work; None between two stages."""
        running = [stage.name for stage in self.stages if stage.state == "Running" and stage.name != "feeder"]
        return running[-1] if running else None


def headline(snapshot: Snapshot) -> str:
    """Stage, step, phase, samples, reward, satisfied share, tokens/s, time left: one line."""
    status = snapshot.service
    if snapshot.current != "train-loop" or status is None or not status.serving:
        return snapshot.current or ("between stages" if snapshot.stages else "waiting for the worker to take the run")
    words = [snapshot.current, f"step {min(status.next_step, status.steps)}/{status.steps}", status.phase or "between phases"]
    if status.phase == "collect":
        words.append(f"{status.batch.ready}/{status.batch.size} samples")
    words += _last_step(status.metrics)
    if status.eta_s is not None:
        words.append(f"{_minutes(status.eta_s)} left")
    return "  ".join(words)


def _last_step(metrics: dict[str, Any]) -> list[str]:
    shown = (
        ("rollout/reward_mean", "reward {:+.2f}"),
        ("rollout/satisfied_share", "satisfied {:.2f}"),
        ("perf/tokens_per_s", "{:.0f} tokens/s"),
    )
    return [form.format(metrics[key]) for key, form in shown if metrics.get(key) is not None]


def _minutes(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


class PlainProgress:
    """A line whenever a stage ends or begins, a step or a phase changes, and now and then in a long one."""

    def __init__(self) -> None:
        self._told: set[str] = set()
        self._key: tuple[Any, ...] = ()
        self._said_at = 0.0

    def lines(self, snapshot: Snapshot) -> list[str]:
        """What is new in this snapshot."""
        new = [str(stage) for stage in snapshot.stages if stage.ended and stage.name not in self._told]
        self._told |= {stage.name for stage in snapshot.stages if stage.ended}
        status = snapshot.service
        key = (snapshot.current, status.next_step if status else None, status.phase if status else None)
        if snapshot.stages and snapshot.current is None:
            return new
        if key != self._key or time.monotonic() - self._said_at > SAY_AGAIN_S:
            self._key, self._said_at = key, time.monotonic()
            new.append(headline(snapshot))
        return new
