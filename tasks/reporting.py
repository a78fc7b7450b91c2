"""What a person sees of a run in Prefect. Every artifact is updated in place: there is one of each, however long the run."""

from __future__ import annotations

import base64
import json
import re
import socket
import textwrap
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any
from uuid import UUID

from prefect.artifacts import (
    create_link_artifact,
    create_markdown_artifact,
    create_progress_artifact,
    create_table_artifact,
)
from prefect.client.orchestration import get_client
from prefect.logging import get_run_logger

from openclaw_core.cluster.dry_run import dry_run
from openclaw_core.cluster.dry_run.text import as_text
from openclaw_core.config import RunConfig
from openclaw_core.loop.client import ServiceStatus
from openclaw_core.loop.summary import Summary, summary_rows
from openclaw_core.report.gather import RunRecord
from openclaw_core.report.placement import placement_table
from openclaw_core.report.recorder import recorded
from openclaw_core.report.samples import ShownSample, StepSamples
from openclaw_core.report.series import Row
from openclaw_core.report.table import ROWS, metrics_table
from openclaw_core.rundir import RunDir

WIDTH = 100
"""Characters of a line in a code block."""


class TrainingArtifacts:
    """A Watcher (report/recorder.py) that shows one train loop. An attempt that is made anew has versions of its own."""

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self._ids: dict[str, UUID] = {}
        self._shown: dict[str, Any] = {}
        """Artifact → what it shows."""

    def progress(self, status: ServiceStatus, rows: Sequence[Row]) -> None:
        """Steps, turns of the current batch, and the table of the last steps."""
        if not status.serving:
            return
        words = f"Run {self._run_id}: {status.step} of {status.steps} steps"
        self._progress("train-progress", status.step, status.steps, words)
        batch = status.batch
        if status.state == "finished":
            self._progress("batch-progress", batch.size, batch.size, f"All {status.steps} steps are done")
        else:
            words = f"Step {status.next_step}, {status.phase or 'between two phases'}: {status.waiting_for}"
            self._progress("batch-progress", batch.ready, batch.size, words)
        if rows:
            description = f"Run {self._run_id}: the last {ROWS} steps; all of them are in metrics.jsonl"
            table = metrics_table(rows)
            self._show("train-metrics", table, lambda key: create_table_artifact(table, key=key, description=description))

    def report(self, record: RunRecord, plots: str, page: Path) -> None:
        """Plots, samples of the newest step, and where the HTML report is."""
        if plots:
            self._markdown("plots", f"![plots of {self._run_id}]({data_uri(plots)})\n", f"Run {self._run_id}: all its steps")
        if record.samples:
            self._markdown("samples", samples_markdown(record.samples[-1]), f"Run {self._run_id}: two answers of a step")
        where = f"A file on {socket.gethostname()}: open it there, or fetch it with `scp {socket.gethostname()}:{page} .`"
        self._show(
            "report",
            page.as_uri(),
            lambda key: create_link_artifact(page.as_uri(), link_text=page.name, key=key, description=where),
        )

    def _progress(self, key: str, done: int, of: int, words: str) -> None:
        shown = (100 * done / of, words)
        if key not in self._ids:
            self._ids[key] = create_progress_artifact(progress=shown[0], key=key, description=words)  # pyright: ignore[reportArgumentType]
        elif self._shown[key] != shown:
            _update(self._ids[key], data=shown[0], description=words)
        self._shown[key] = shown

    def _markdown(self, key: str, text: str, description: str) -> None:
        self._show(key, text, lambda key: create_markdown_artifact(text, key=key, description=description))

    def _show(self, key: str, data: Any, create: Callable[[str], Any]) -> None:
        """Create the artifact, or give the one that is there other data."""
        if key not in self._ids:
            self._ids[key] = create(key)
        elif self._shown[key] != data:
            _update(self._ids[key], data=data if isinstance(data, str) else json.dumps(data))
        self._shown[key] = data


def _update(artifact: UUID, **values: Any) -> None:
    """As ``client.update_artifact``, which also emits an event with all of the data: of 2,000 pictures, 180 MB of database."""
    with get_client(sync_client=True) as client:
        client.request("PATCH", "/artifacts/{id}", path_params={"id": artifact}, json=values)


def run_shown(config: RunConfig, run: RunDir) -> AbstractContextManager[None]:
    """For the duration of the block, record a run and show it here, in the flow run or task that is on now."""
    return recorded(config, run, [TrainingArtifacts(run.run_id)])


def samples_markdown(samples: StepSamples) -> str:
    """Two answers of a step. Texts of users and models are in code blocks, where nothing of them is markup."""
    parts = [f"# Step {samples['step']}\n"]
    for label, sample in (("good", samples["good"]), ("bad", samples["bad"])):
        parts += _sample(label, sample) if sample is not None else [f"No turn of this step was judged {label}.\n"]
    return "\n".join(parts)


def _sample(label: str, sample: ShownSample) -> list[str]:
    votes = "\n".join(f"{vote['question']} {_vote(vote['value'])}: {' '.join(vote['raw'].split())}" for vote in sample["votes"])
    cut_off = ", cut off at the length limit" if sample["truncated"] else ""
    return [
        f"## Judged {label} ({sample['reward']:+d}){cut_off}: turn `{sample['turn_id'][:16]}`\n",
        f"Asked:\n\n{_fenced(sample['asked'])}",
        f"Answered:\n\n{_fenced(sample['answer'])}",
        f"Then came:\n\n{_fenced(sample['next_state'] or '(nothing)')}",
        f"Hints:\n\n{_fenced(chr(10).join(sample['hints']) or '(none)')}",
        f"Votes:\n\n{_fenced(votes or '(none)')}",
    ]


def _vote(value: int | None) -> str:
    return "none" if value is None else f"{value:+d}"


def _fenced(text: str) -> str:
    """A code block whose fence is longer than any row of backticks in the text. Prefect's page does not wrap its lines."""
    text = "\n".join(part for line in text.splitlines() for part in textwrap.wrap(line, WIDTH) or [""])
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    return f"{fence}text\n{text}\n{fence}\n"


def data_uri(svg: str) -> str:
    """A picture that a page can hold."""
    return f"data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()}"


def show_placement(config: RunConfig, run_id: str) -> None:
    """Keep on the run's page which host and device each rank, engine and judge has."""
    create_table_artifact(placement_table(config), key="placement", description=f"Run {run_id}: what is where")


def report_summary(summary: Summary) -> None:
    """Keep the summary on the run's page."""
    rows = "\n".join(f"| {what} | {value} |" for what, value in summary_rows(summary))
    create_markdown_artifact(f"| | |\n|---|---|\n{rows}\n", key="summary", description=f"Run {summary['run_id']}")


def show_dry_run(config: RunConfig, run_id: str) -> None:
    """Log what a run would do on every host, and keep it on the run's page."""
    text = as_text(dry_run(config, run_id))
    get_run_logger().info("%s", text)
    create_markdown_artifact(f"```\n{text}\n```\n", key="dry-run", description=f"What {run_id} would do; nothing was done")
