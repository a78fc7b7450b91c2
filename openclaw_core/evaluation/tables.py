"""Evaluations as rows of text: for the terminal, and for Prefect's table artifacts."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table

from openclaw_core.evaluation.convergence import SessionsReport
from openclaw_core.evaluation.report import Change, Difference, EvalReport, Tally, compare
from openclaw_core.evaluation.wilson import Interval

Row = dict[str, str]
"""Heading → value; all rows of a table have the same headings."""

_WIDTH = 128
"""Where there is no terminal that says its own."""


def interval_in_words(bounds: Interval) -> str:
    """A 95 % interval."""
    return f"[{bounds[0]:.3f}, {bounds[1]:.3f}]"


def held_out_rows(report: EvalReport, earlier: EvalReport | None = None) -> list[Row]:
    """The shares of a report with Wilson intervals; with an earlier report, its shares and the differences too.

    Raises EvaluationError where the two did not ask the same personas.
    """
    comparison = compare(earlier, report) if earlier is not None else None
    rows: list[Row] = []
    for name, tally in [*report.personas.items(), ("all", report.total)]:
        row = {"persona": name, "n": str(tally.n)}
        if comparison is None:
            row |= _shares(tally)
        else:
            row |= _differences(comparison if tally is report.total else comparison.personas[name])
        rows.append(row | {"words": f"{tally.mean_words:.0f}"})
    return rows


def session_rows(report: SessionsReport) -> list[Row]:
    """Sessions to convergence per persona and joint: mean, spread, and each trial."""
    rows = [
        {
            "persona": name,
            "sessions": str(found),
            "trials": str(found.n),
            "not converged": str(found.not_converged),
            "each": ", ".join(str(trial.personas[name]) for trial in report.trials),
        }
        for name, found in report.personas.items()
    ]
    joint = report.joint
    return [
        *rows,
        {
            "persona": "joint average",
            "sessions": str(joint),
            "trials": str(joint.n),
            "not converged": str(joint.not_converged),
            "each": "",
        },
    ]


def held_out_json(report: EvalReport, earlier: EvalReport | None = None) -> dict[str, Any]:
    """For programs: the report, and under ``against`` the comparison with an earlier one."""
    body = report.model_dump(mode="json")
    return body if earlier is None else {**body, "against": {"label": earlier.label, **asdict(compare(earlier, report))}}


def held_out_title(report: EvalReport, earlier: EvalReport | None = None) -> str:
    """What the rows of ``held_out_rows`` are of."""
    versions = ", ".join(str(version) for version in report.versions) or "unknown"
    title = f"{report.label}: {report.problems} held-out problems for each persona, {report.model}, weight version {versions}"
    return title if earlier is None else f"{title}; against {earlier.label}"


def session_title(report: SessionsReport) -> str:
    """What the rows of ``session_rows`` are of."""
    names = ", ".join(trial.name for trial in report.trials)
    return (
        f"Sessions until {report.consecutive} first answers in a row meet the persona's rule, at most {report.max_sessions}; "
        f"mean ± sd of {len(report.trials)}: {names}"
    )


def print_table(title: str, rows: Sequence[Row]) -> None:
    """Show rows on the terminal; a pipe or a file gets the same text."""
    table = Table()
    for heading in rows[0]:
        table.add_column(heading, justify="left" if heading in ("persona", "each") else "right")
    for row in rows:
        table.add_row(*row.values())
    console = Console(highlight=False, width=None if sys.stdout.isatty() else _WIDTH)
    console.print(title, markup=False, soft_wrap=True)
    console.print(table)


def _shares(tally: Tally) -> Row:
    return {
        "satisfied": f"{tally.satisfied_share:.3f} {interval_in_words(tally.satisfied_interval)}",
        "relevant": f"{tally.relevant_share:.3f} {interval_in_words(tally.relevant_interval)}",
        "cut off": f"{tally.truncated_share:.3f}",
    }


def _differences(change: Change) -> Row:
    return {
        "satisfied": _difference(change.satisfied),
        "relevant": _difference(change.relevant),
        "cut off": f"{change.truncated.before:.3f} → {change.truncated.after:.3f}",
    }


def _difference(difference: Difference) -> str:
    bounds = interval_in_words((difference.low, difference.high))
    return f"{difference.before:.3f} → {difference.after:.3f}: {difference.difference:+.3f} {bounds}"
