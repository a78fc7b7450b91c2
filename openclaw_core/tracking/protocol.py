"""What a tracker is to this project, and what it is told of a step."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Protocol


class Tracker(Protocol):
    """One run in one tracker. Whatever it raises ends its being told, not the run (following.py)."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """A step's numbers; steps come in order, each once."""
        ...

    def close(self) -> None:
        """Nothing more comes from this process. The run may go on in another."""
        ...


def scalars(row: Mapping[str, Any]) -> dict[str, float]:
    """The finite numbers of a line of metrics.jsonl; counts by reason become a number each, as rollout/dropped/stale."""
    found: dict[str, float] = {}
    for name, value in row.items():
        if isinstance(value, dict):
            found |= {f"{name}/{reason}": count for reason, count in scalars(value).items()}
        elif isinstance(value, int | float) and math.isfinite(value) and name not in ("step", "time"):
            found[name] = float(value)
    return found
