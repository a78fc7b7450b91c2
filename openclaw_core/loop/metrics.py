"""The metrics of a step (docs/METRICS.md) and the file that holds them."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from openclaw_core.ledger import Ledger, StepRecord, StepState
from openclaw_core.loop.intake import Intake
from openclaw_core.types import Sample

Metrics = dict[str, Any]


def rollout_metrics(samples: Sequence[Sample], version: int, intake: Intake, timings: dict[str, float]) -> Metrics:
    """What the batch looks like, and how judging went since the last call. ``version``: that of the weights at the step's
    start.
    """
    n = len(samples)
    tokens = sum(len(s.response_ids) for s in samples)
    collect_s = timings.get("perf/collect_time")
    return {
        "rollout/reward_mean": sum(s.reward for s in samples) / n,
        "rollout/hint_rate": sum(bool(s.hints) for s in samples) / n,
        "rollout/response_len": tokens / n,
        "rollout/prompt_len": sum(len(s.prompt_ids) for s in samples) / n,
        "rollout/truncated_ratio": sum(s.truncated for s in samples) / n,
        "rollout/lag_mean": sum(version - s.weight_version for s in samples) / n,
        "perf/tokens_per_s": tokens / collect_s if collect_s else None,
        **intake.judge.take_metrics(),
    }


class MetricsFile:
    """metrics.jsonl: one object a reported step. The ledger holds the same; the file is made anew from it at a restart."""

    def __init__(self, path: Path, ledger: Ledger) -> None:
        self._path = path
        self._ledger = ledger

    def rebuild(self) -> None:
        """Write the file whole from the ledger, atomically."""
        lines = [self._line(record) for record in self._ledger.steps() if record.state is StepState.REPORTED]
        temporary = self._path.with_suffix(".tmp")
        temporary.write_text("".join(lines))
        temporary.replace(self._path)

    def append(self, record: StepRecord) -> None:
        """Add one reported step."""
        with self._path.open("a") as file:
            file.write(self._line(record))

    def rows(self, after: int, limit: int) -> list[Metrics]:
        """At most ``limit`` lines of the file, parsed, of the steps after ``after``."""
        done = [record for record in self._ledger.steps() if record.step > after and record.state is StepState.REPORTED]
        return [self._row(record) for record in done[:limit]]

    def complete(self, record: StepRecord, timings: dict[str, float]) -> Metrics:
        """A published step's metrics with what is known only at its end: outcomes, drops, times."""
        first = [outcome for outcome in self._ledger.outcomes(record.step) if outcome.first]
        drops = self._ledger.drops(record.step)
        parts = ("perf/collect_time", "perf/score_time", "perf/train_time", "perf/publish_time")
        masked = record.metrics.get("rollout/dropped", {})
        return {
            **record.metrics,
            **timings,
            "perf/step_time": sum(timings[part] for part in parts) if all(part in timings for part in parts) else None,
            "rollout/sessions": len(first),
            "rollout/satisfied_share": sum(o.satisfied and o.relevant for o in first) / len(first) if first else None,
            "rollout/relevant_share": sum(o.relevant for o in first) / len(first) if first else None,
            "rollout/dropped": {
                reason: drops.get(reason, 0) + masked.get(reason, 0) for reason in sorted(drops.keys() | masked.keys())
            },
            "time": time.time(),
        }

    @staticmethod
    def _row(record: StepRecord) -> Metrics:
        return {"step": record.step, "version": record.version, **record.metrics}

    @classmethod
    def _line(cls, record: StepRecord) -> str:
        return json.dumps(cls._row(record)) + "\n"
