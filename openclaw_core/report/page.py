"""The report of a run: one HTML file that asks nothing of anywhere, not even of itself: it has no script."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup

from openclaw_core.loop.summary import summary_rows
from openclaw_core.report.gather import RunRecord, episodes, judge_rows, pairs, settings
from openclaw_core.report.panels import healthy
from openclaw_core.report.plots import plots_svg
from openclaw_core.report.table import ROWS, metrics_table
from openclaw_core.rundir import write_whole


def write_page(record: RunRecord, out: Path) -> Path:
    """Make plots and page, and write it whole or not at all. Raises OSError."""
    out = out.absolute()
    write_whole(out, render(record, run_plots(record)), mode=0o644)
    return out


def run_plots(record: RunRecord) -> str:
    """The plots of a run as SVG; empty before its first step."""
    return plots_svg(record.rows, healthy(record.config)) if record.rows else ""


def render(record: RunRecord, plots: str) -> str:
    """The page. All texts are escaped but ``plots`` (``run_plots``), which holds numbers and names of this project alone."""
    return _template().render(
        run_id=record.run_id,
        title=f"{record.run_id}: {record.config.model.name}, {_progress(record)}",
        written=time.strftime("%Y-%m-%d %H:%M:%S %Z"),
        summary=summary_rows(record.summary) if record.summary is not None else [],
        progress=_progress(record),
        health=record.health,
        episodes=episodes(record.rows),
        plots=Markup(plots),
        table=metrics_table(record.rows),
        table_rows=ROWS,
        pairs=pairs(record),
        tallies=_tallies(record),
        samples=list(reversed(record.samples)),
        judge=judge_rows(record.rows) if record.rows else [],
        judge_client=record.config.judge.client,
        checkpoints=record.checkpoints,
        on_hosts=record.config.cluster.containers,
        settings=settings(record.config),
    )


@cache
def _template() -> Template:
    environment = Environment(
        loader=PackageLoader("openclaw_core.report", "."), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    environment.lstrip_blocks = True
    return environment.get_template("page.html.jinja")


def _progress(record: RunRecord) -> str:
    done = record.rows[-1]["step"] if record.rows else 0
    return f"{done} of {record.config.train.steps} steps"


def _tallies(record: RunRecord) -> dict[str, Sequence[tuple[str, Any]]]:
    """Persona → (label, tally) of the evaluations that there are."""
    reports = [report for report in (record.before, record.after) if report is not None]
    names = dict.fromkeys(name for report in reports for name in report.personas)
    return {name: [(report.label, report.personas[name]) for report in reports if name in report.personas] for name in names}
