"""What a run achieved, for its end: held-out shares before and after, sessions to convergence, and where everything is."""

from __future__ import annotations

import json
from typing import Any, TypedDict

from openclaw_core.config import RunConfig
from openclaw_core.evaluation import EvalReport, compare
from openclaw_core.evaluation.convergence import SessionsReport
from openclaw_core.evaluation.report import Share
from openclaw_core.evaluation.sessions import sessions_to_convergence, trials_beside
from openclaw_core.evaluation.tables import interval_in_words
from openclaw_core.loop.client import ControlClient
from openclaw_core.rundir import RunDir
from openclaw_core.trainer.retention import latest


class Summary(TypedDict):
    """summary.json."""

    run_id: str
    preset: str
    model: str
    steps: int
    version: int
    satisfied: Share
    relevant: Share
    truncated: Share
    """Held-out answers that were cut off at the length limit."""
    satisfied_by_persona: dict[str, tuple[float, float]]
    sessions: dict[str, Any] | None
    """Sessions to convergence of the run's own sessions (evaluation/convergence.py: SessionsReport); None where the ledger is
    on another machine."""
    sessions_beside: dict[str, Any] | None
    """The same for the seeds that were asked beside the run; None where none was."""
    checkpoint: str | None
    export: str
    metrics: str


def summarise(config: RunConfig, run: RunDir) -> Summary:
    """Gather the summary from the run's files and its live service, and keep it as summary.json."""
    before, after = (EvalReport.load(run.evaluation / f"{label}.json") for label in ("before", "after"))
    change = compare(before, after)
    with ControlClient.of(run, config) as client:
        status = client.status()
    checkpoint = latest(run.checkpoints)
    beside = trials_beside([run])
    summary: Summary = {
        "run_id": run.run_id,
        "preset": config.preset,
        "model": config.model.name,
        "steps": status.step,
        "version": status.version,
        "satisfied": change.satisfied.as_share(),
        "relevant": change.relevant.as_share(),
        "truncated": change.truncated.as_share(),
        "satisfied_by_persona": {
            name: (persona.satisfied.before, persona.satisfied.after) for name, persona in change.personas.items()
        },
        "sessions": sessions_to_convergence([run]).model_dump(mode="json") if run.ledger_file.exists() else None,
        "sessions_beside": beside.model_dump(mode="json") if beside is not None else None,
        "checkpoint": str(checkpoint) if checkpoint else None,
        "export": str(run.export),
        "metrics": str(run.metrics_file),
    }
    temporary = run.summary_file.with_suffix(".tmp")
    temporary.write_text(json.dumps(summary, indent=2))
    temporary.replace(run.summary_file)
    return summary


def read_summary(run: RunDir) -> Summary | None:
    """The kept summary, or None where the run has none yet."""
    return json.loads(run.summary_file.read_text()) if run.summary_file.exists() else None


def summary_rows(summary: Summary) -> list[tuple[str, str]]:
    """The summary as (what, value) lines for people."""
    personas = ", ".join(
        f"{name} {before:.2f} → {after:.2f}" for name, (before, after) in summary["satisfied_by_persona"].items()
    )
    return [
        ("run", f"{summary['run_id']}: {summary['steps']} steps of {summary['model']}, weight version {summary['version']}"),
        ("held-out, satisfied", _in_words(summary["satisfied"])),
        ("held-out, relevant", _in_words(summary["relevant"])),
        ("by persona", personas),
        ("held-out, cut off", _in_words(summary["truncated"])),
        *_session_rows(summary),
        ("checkpoint", summary["checkpoint"] or "none"),
        ("Hugging Face export", summary["export"]),
        ("metrics", summary["metrics"]),
    ]


def _session_rows(summary: Summary) -> list[tuple[str, str]]:
    rows: list[tuple[str, str]] = []
    if summary["sessions"] is not None:
        own = SessionsReport.model_validate(summary["sessions"])
        counts = ", ".join(f"{name} {count}" for name, count in own.trials[0].personas.items())
        rows.append(("sessions to converge", f"{counts}; average {own.joint}"))
    if summary["sessions_beside"] is not None:
        beside = SessionsReport.model_validate(summary["sessions_beside"])
        means = ", ".join(f"{name} {found}" for name, found in beside.personas.items())
        rows.append((f"trials beside ({len(beside.trials)})", f"{means}; average {beside.joint}"))
    return rows


def _in_words(share: Share) -> str:
    return (
        f"{share['before']:.3f} {interval_in_words(share['before_interval'])} before, "
        f"{share['after']:.3f} {interval_in_words(share['after_interval'])} after; "
        f"difference {share['difference']:+.3f} {interval_in_words(share['difference_interval'])}"
    )
