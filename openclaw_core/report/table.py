"""The steps of a run as rows of text, for the report and for Prefect."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from openclaw_core.report.series import Row

COLUMNS = {
    "reward": "rollout/reward_mean",
    "satisfied": "rollout/satisfied_share",
    "hints": "rollout/hint_rate",
    "length": "rollout/response_len",
    "cut off": "rollout/truncated_ratio",
    "grad norm": "train/grad_norm",
    "OPD |delta|": "train/opd_abs_mean",
    "KL": "train/kl",
    "parity": "train/engine_parity_abs_diff",
    "tokens/s": "perf/tokens_per_s",
    "seconds": "perf/step_time",
}
"""Heading → key of docs/METRICS.md."""
ROWS = 50
"""Steps of a table."""
_MARKS = {"healthy": "🟢", "warn": "🟡", "stop": "🔴"}


def describe(value: Any) -> str:
    """A metric for a table: four significant digits, and a dash where there is none."""
    if value is None:
        return "–"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def health_mark(row: Row) -> str:
    """The health after a step, as a coloured dot and in words; a dash where it was not looked at."""
    state = row.get("health/state")
    return f"{_MARKS.get(state, '⚪')} {state}" if state else "–"


def metrics_table(rows: Sequence[Row], last: int = ROWS) -> list[dict[str, str]]:
    """The last steps, oldest first."""
    return [
        {"step": str(row["step"]), "health": health_mark(row)} | {name: describe(row.get(key)) for name, key in COLUMNS.items()}
        for row in rows[-last:]
    ]
