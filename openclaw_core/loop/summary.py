"""What a run achieved, for its end: held-out shares before and after, and where everything is."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TypedDict

from openclaw_core.config import RunConfig
from openclaw_core.evaluation import EvalReport, compare
from openclaw_core.loop.client import ControlClient
from openclaw_core.rundir import RunDir
from openclaw_core.trainer.retention import latest


class Share(TypedDict):
    """A held-out share before and after, with 95 % intervals of both and of the difference."""

    before: float
    before_interval: tuple[float, float]
    after: float
    after_interval: tuple[float, float]
    difference: float
    difference_interval: tuple[float, float]


class Summary(TypedDict):
    """summary.json."""

    run_id: str
    preset: str
    model: str
    steps: int
    version: int
    satisfied: Share
    relevant: Share
    satisfied_by_persona: dict[str, tuple[float, float]]
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
    b, a = before.total, after.total
    summary: Summary = {
        "run_id": run.run_id,
        "preset": config.preset,
        "model": config.model.name,
        "steps": status.step,
        "version": status.version,
        "satisfied": _share(asdict(change.satisfied), b.satisfied_interval, a.satisfied_interval),
        "relevant": _share(asdict(change.relevant), b.relevant_interval, a.relevant_interval),
        "satisfied_by_persona": {
            name: (persona.satisfied.before, persona.satisfied.after) for name, persona in change.personas.items()
        },
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
        ("checkpoint", summary["checkpoint"] or "none"),
        ("Hugging Face export", summary["export"]),
        ("metrics", summary["metrics"]),
    ]


def _share(change: dict[str, float], before: tuple[float, float], after: tuple[float, float]) -> Share:
    return {
        "before": change["before"],
        "before_interval": before,
        "after": change["after"],
        "after_interval": after,
        "difference": change["difference"],
        "difference_interval": (change["low"], change["high"]),
    }


def _in_words(share: Share) -> str:
    def interval(bounds: tuple[float, float]) -> str:
        return f"[{bounds[0]:.3f}, {bounds[1]:.3f}]"

    return (
        f"{share['before']:.3f} {interval(share['before_interval'])} before, "
        f"{share['after']:.3f} {interval(share['after_interval'])} after; "
        f"difference {share['difference']:+.3f} {interval(share['difference_interval'])}"
    )
