"""All that a run directory knows of its run, read from its files: no service is needed, and a live one is not disturbed."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from openclaw_core.config import ConfigError, RunConfig, load_config
from openclaw_core.evaluation import EvalReport
from openclaw_core.evaluation.report import Finding as HeldOutFinding
from openclaw_core.health import Verdict, assess
from openclaw_core.inspection.reader import LedgerReader
from openclaw_core.loop.summary import Summary, read_summary
from openclaw_core.report.parameters import parameters
from openclaw_core.report.samples import StepSamples, step_samples
from openclaw_core.report.series import Row, mean, read_rows
from openclaw_core.report.table import describe
from openclaw_core.rundir import RunDir
from openclaw_core.trainer.retention import candidates

LAST_SAMPLES = 3
"""Steps whose samples a report shows, besides the first."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A persona's held-out message, and the answers before and after training; None where that was not asked yet."""

    persona: str
    message: str
    before: HeldOutFinding | None
    after: HeldOutFinding | None


@dataclass(frozen=True, slots=True)
class Setting:
    """A parameter and its value; ``preset``: the preset's, where it is another."""

    name: str
    value: str
    preset: str | None


@dataclass(frozen=True, slots=True)
class Episode:
    """Steps over which a health rule spoke, without a break."""

    rule: str
    since: int
    until: int


@dataclass(frozen=True, slots=True)
class RunRecord:
    """What there is about a run."""

    run_id: str
    config: RunConfig
    rows: Sequence[Row]
    summary: Summary | None
    before: EvalReport | None
    after: EvalReport | None
    samples: Sequence[StepSamples]
    """Of the first step, and of the last ones; oldest first."""
    health: Verdict
    """After the last step."""
    checkpoints: Sequence[Path]


def gather(run: RunDir) -> RunRecord:
    """Read the files of a run. Raises RunDirError if it is none, EvaluationError or LedgerError for a file of another form."""
    config, rows = run.config(), read_rows(run.metrics_file)
    return RunRecord(
        run_id=run.run_id,
        config=config,
        rows=rows,
        summary=read_summary(run),
        before=_evaluation(run, "before"),
        after=_evaluation(run, "after"),
        samples=_samples(run, [row["step"] for row in rows]),
        health=assess(rows, config),
        checkpoints=candidates(run.checkpoints),
    )


def shown_steps(steps: Sequence[int]) -> list[int]:
    """Of which steps samples are shown."""
    return list(dict.fromkeys([*steps[:1], *steps[-LAST_SAMPLES:]]))


def pairs(record: RunRecord) -> dict[str, list[Pair]]:
    """Persona → its held-out answers, side by side."""
    reports = (record.before, record.after)
    found = [{(each.persona, each.message): each for each in report.samples} if report else {} for report in reports]
    pairs: dict[str, list[Pair]] = {}
    for persona, message in dict.fromkeys([*found[0], *found[1]]):
        answers = (side.get((persona, message)) for side in found)
        pairs.setdefault(persona, []).append(Pair(persona, message, *answers))
    return pairs


def settings(config: RunConfig) -> dict[str, list[Setting]]:
    """Section → its parameters."""
    try:
        preset = parameters(load_config(config.preset))
    except ConfigError:  # a preset of another version
        preset = {}
    sections: dict[str, list[Setting]] = {}
    for name, value in parameters(config).items():
        section, _, rest = name.partition(".")
        other = json.dumps(preset[name]) if name in preset and preset[name] != value and section != "paths" else None
        sections.setdefault(section if rest else "run", []).append(Setting(name, json.dumps(value), other))
    return sections


def episodes(rows: Sequence[Row]) -> list[Episode]:
    """When each health rule spoke, in order."""
    found: dict[tuple[str, int], int] = {}
    for row in rows:
        for rule, since in row.get("health/findings", {}).items():
            found[rule, since] = row["step"]
    return [Episode(rule, since, until) for (rule, since), until in sorted(found.items(), key=lambda item: item[0][1])]


def judge_rows(rows: Sequence[Row]) -> list[tuple[str, str]]:
    """How judging went over all steps, as (what, value)."""

    def total(key: str) -> str:
        values = [row[key] for row in rows if row.get(key) is not None]
        return f"{sum(values):,}" if values else "–"

    refused: Counter[str] = Counter()
    for row in rows:
        refused.update(row.get("judge/hints_refused") or {})
    return [
        ("votes that agree with the majority", describe(mean(rows, "judge/agreement"))),
        ("seconds of a call, mean", describe(mean(rows, "judge/latency_s"))),
        ("seconds of a call, mean of the 95th percentiles", describe(mean(rows, "judge/latency_p95_s"))),
        ("answers without a vote, share", describe(mean(rows, "judge/parse_failure_share"))),
        ("calls that failed", total("judge/failed_calls")),
        ("turns without a quorum", total("judge/unavailable")),
        ("verdicts that say nothing, share", describe(mean(rows, "rollout/no_signal_rate"))),
        ("tokens read, written", f"{total('judge/prompt_tokens')}, {total('judge/completion_tokens')}"),
        ("hints that were refused", ", ".join(f"{reason} {count}" for reason, count in refused.most_common()) or "none"),
    ]


def _evaluation(run: RunDir, label: str) -> EvalReport | None:
    file = run.evaluation / f"{label}.json"
    return EvalReport.load(file) if file.exists() else None


def _samples(run: RunDir, steps: Sequence[int]) -> list[StepSamples]:
    """From the ledger; where that is on another machine, from what the driver was told."""
    if not run.ledger_file.exists():
        return json.loads(run.samples_file.read_text()) if run.samples_file.exists() else []
    with LedgerReader(run.ledger_file) as reader:
        found = [step_samples(reader, step) for step in shown_steps(steps)]
    return [samples for samples in found if samples is not None]
