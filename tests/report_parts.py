"""Runs whose report is made: real metrics, and texts that a page must not take for its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from openclaw_core.evaluation import EvalReport
from openclaw_core.evaluation.report import Finding, Tally
from openclaw_core.report.series import read_rows
from openclaw_core.rundir import RunDir
from tests.inspection_parts import small_run

RECORDED = Path(__file__).parent / "health_recordings" / "local_cpu.jsonl"
NASTY = "<script>alert('x')</script><img src=https://evil.example/x onerror=alert(1)>\n```\n[x](javascript:alert(1))"


def real_rows(count: int) -> list[dict[str, Any]]:
    """Steps of a real run of local-cpu, over and over, with numbers that go on; each round a little higher than the last."""
    recorded = read_rows(RECORDED)
    rows: list[dict[str, Any]] = []
    for i in range(count):
        row, factor = recorded[i % len(recorded)], 1 + i / (2 * count)
        rows.append(
            {name: value * factor if isinstance(value, float) else value for name, value in row.items()} | {"step": i + 1}
        )
    return rows


def write_rows(run: RunDir, rows: list[dict[str, Any]]) -> None:
    run.metrics_file.write_text("".join(json.dumps(row) + "\n" for row in rows))


def evaluation(label: str, answers: dict[str, tuple[str, bool]]) -> EvalReport:
    """``answers``: persona → what it was answered, and whether it is satisfied."""
    findings = [
        Finding(
            persona=persona,
            message=f"Question of {persona} {NASTY}",
            answer=answer,
            satisfied=satisfied,
            relevant=True,
            words=len(answer.split()),
            truncated=not satisfied,
            version=0 if label == "before" else 20,
        )
        for persona, (answer, satisfied) in answers.items()
    ]
    return EvalReport(
        label=label,
        created_at=1.0,
        model="tiny",
        versions=(0,),
        problems=1,
        seed=1,
        temperature=1.0,
        max_tokens=8,
        total=Tally.of(findings),
        personas={finding.persona: Tally.of([finding]) for finding in findings},
        samples=tuple(findings),
    )


def run_with_report(directory: Path, steps: int = 1) -> RunDir:
    """A run with a ledger of one step, ``steps`` lines of real metrics, and both evaluations."""
    run = small_run(directory)
    write_rows(run, real_rows(steps))
    run.evaluation.mkdir()
    evaluation("before", {"ta": ("An old answer.", False)}).write(run.evaluation / "before.json")
    evaluation("after", {"ta": (f"A new answer. {NASTY}", True)}).write(run.evaluation / "after.json")
    return run
