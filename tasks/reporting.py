"""What a person sees of the training in Prefect: one progress bar and one table of metrics, both updated in place."""

from __future__ import annotations

import json
from collections import deque
from typing import Any
from uuid import UUID

from prefect.artifacts import (
    create_markdown_artifact,
    create_progress_artifact,
    create_table_artifact,
    update_progress_artifact,
)
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import ArtifactUpdate
from prefect.logging import get_run_logger

from openclaw_core.cluster.dry_run import dry_run
from openclaw_core.cluster.dry_run.text import as_text
from openclaw_core.config import RunConfig
from openclaw_core.loop.summary import Summary, summary_rows

COLUMNS = {
    "reward": "rollout/reward_mean",
    "satisfied": "rollout/satisfied_share",
    "hints": "rollout/hint_rate",
    "length": "rollout/response_len",
    "grad norm": "train/grad_norm",
    "OPD |delta|": "train/opd_abs_mean",
    "KL": "train/kl",
    "parity": "train/engine_parity_abs_diff",
    "tokens/s": "perf/tokens_per_s",
    "seconds": "perf/step_time",
}
"""Heading → key of docs/METRICS.md."""
ROWS = 50


def describe(value: Any) -> str:
    """A metric for a table: four significant digits, and a dash where there is none."""
    if value is None:
        return "–"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


class TrainingReport:
    """The artifacts of one train-loop. Updating in place keeps one version each, however many steps there are."""

    def __init__(self, run_id: str, steps: int, done: int) -> None:
        self.run_id, self.steps = run_id, steps
        self._rows: deque[dict[str, str]] = deque(maxlen=ROWS)
        self._progress: UUID = create_progress_artifact(  # pyright: ignore[reportAttributeAccessIssue]
            progress=100 * done / steps, key="train-progress", description=self._words(done)
        )
        self._table: UUID | None = None

    def add(self, step: int, metrics: dict[str, Any]) -> None:
        """Show a finished step."""
        update_progress_artifact(self._progress, progress=100 * step / self.steps, description=self._words(step))
        self._rows.append({"step": str(step), **{name: describe(metrics.get(key)) for name, key in COLUMNS.items()}})
        rows = list(self._rows)
        if self._table is None:
            description = f"Run {self.run_id}: the last {ROWS} steps; all of them are in metrics.jsonl"
            self._table = create_table_artifact(rows, key="train-metrics", description=description)  # pyright: ignore[reportAttributeAccessIssue]
        else:
            with get_client(sync_client=True) as client:
                client.update_artifact(self._table, ArtifactUpdate(data=json.dumps(rows)))  # pyright: ignore[reportArgumentType]

    def _words(self, step: int) -> str:
        return f"Run {self.run_id}: {step} of {self.steps} steps"


def report_summary(summary: Summary) -> None:
    """Keep the summary on the run's page."""
    rows = "\n".join(f"| {what} | {value} |" for what, value in summary_rows(summary))
    create_markdown_artifact(f"| | |\n|---|---|\n{rows}\n", key="summary", description=f"Run {summary['run_id']}")


def show_dry_run(config: RunConfig, run_id: str) -> None:
    """Log what a run would do on every host, and keep it on the run's page."""
    text = as_text(dry_run(config, run_id))
    get_run_logger().info("%s", text)
    create_markdown_artifact(f"```\n{text}\n```\n", key="dry-run", description=f"What {run_id} would do; nothing was done")
