"""A metric over the steps of a run, thinned out so that a picture of 2,000 steps is no larger than one of 100."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Row = dict[str, Any]
"""A step's metrics (docs/METRICS.md), as a line of metrics.jsonl holds them."""

MAX_POINTS = 66
"""Of a line. A panel is some 300 pixels wide: more could not be told apart."""


@dataclass(frozen=True, slots=True)
class Series:
    """[N] points of at most ``points``. Where several steps share one, it is their mean, between ``low`` and ``high``."""

    step: NDArray[np.float64]
    mean: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]

    @property
    def thinned(self) -> bool:
        """Whether a point stands for more than one step."""
        return bool((self.low < self.high).any())


def series(rows: Sequence[Row], key: str, points: int = MAX_POINTS) -> Series | None:
    """The values of ``key`` that are numbers; None where no step has one."""
    found = [(row["step"], row[key]) for row in rows if _is_number(row.get(key))]
    if not found:
        return None
    step, value = np.array(found, np.float64).T
    # Equal numbers of steps a point, whatever the gaps between them.
    starts = np.unique(np.linspace(0, len(step), min(points, len(step)), endpoint=False).astype(int))
    counts = np.diff(np.append(starts, len(step)))
    return Series(
        step=np.add.reduceat(step, starts) / counts,
        mean=np.add.reduceat(value, starts) / counts,
        low=np.minimum.reduceat(value, starts),
        high=np.maximum.reduceat(value, starts),
    )


def read_rows(metrics_file: Path) -> list[Row]:
    """The steps of a metrics.jsonl, in order; a last line that is still being written is left out. Empty without a file."""
    if not metrics_file.exists():
        return []
    lines = metrics_file.read_text(encoding="utf-8").split("\n")
    return [json.loads(line) for line in lines[:-1]]


def mean(rows: Iterable[Row], key: str) -> float | None:
    """Over the steps that have a number; None where none has."""
    values = [row[key] for row in rows if _is_number(row.get(key))]
    return sum(values) / len(values) if values else None


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
