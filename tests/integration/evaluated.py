"""Evaluations that are there already: nobody answers at the gateway of a run that trains nothing."""

from __future__ import annotations

import time

from openclaw_core.evaluation import EvalReport
from openclaw_core.evaluation.report import Finding, Tally
from openclaw_core.rundir import RunDir


def add_evaluations(run: RunDir) -> None:
    """Before and after; the flow takes them as they are."""
    tally = Tally.of(
        [Finding(persona="ta", message="m", answer="a", satisfied=True, relevant=True, words=1, truncated=False, version=0)]
    )
    run.evaluation.mkdir()
    for label in ("before", "after"):
        report = EvalReport(
            label=label,
            created_at=time.time(),
            model="m",
            versions=(0,),
            problems=1,
            seed=1,
            temperature=1.0,
            max_tokens=1,
            total=tally,
            personas={"ta": tally},
            samples=(),
        )
        (run.evaluation / f"{label}.json").write_text(report.model_dump_json())
