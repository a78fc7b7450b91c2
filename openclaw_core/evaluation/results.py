"""What runs achieved, as one JSON-able result each: what benchmarks of learning compare."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypedDict

from openclaw_core.evaluation.convergence import State
from openclaw_core.evaluation.record import EvaluationError
from openclaw_core.evaluation.report import EvalReport, Share, compare
from openclaw_core.evaluation.sessions import sessions_to_convergence
from openclaw_core.rundir import RunDir


class PersonaSessions(TypedDict):
    """Sessions to convergence of one persona in one run."""

    sessions: int | None
    """The cap where ``state`` is capped; None where there were too few sessions to tell (censored)."""
    state: State
    at_least: int
    """``sessions``, or the least that it can still become."""
    n_sessions: int
    """Sessions that were counted: up to the one that ended the streak, or all there were, the cap at most."""


class FirstLast(TypedDict):
    """A metric of the first and of the last reported step; None where the step has no such value."""

    first: float | None
    last: float | None


class RunResult(TypedDict):
    """One run."""

    run_id: str
    seeds: dict[str, int]
    """``train.seed``, ``feeder.seed`` and ``evaluation.seed``."""
    steps: int
    """Steps that were reported."""
    seconds: float | None
    """Wall time of those steps, the sum of ``perf/step_time``; None where a step has none (it was replayed)."""
    sessions: dict[str, PersonaSessions]
    satisfied: Share
    relevant: Share
    truncated: Share
    """Held-out answers that were cut off at the length limit."""
    satisfied_by_persona: dict[str, Share]
    truncated_ratio: FirstLast
    """Of the training batches."""
    entropy: FirstLast


def run_results(directories: Sequence[Path]) -> list[RunResult]:
    """The results of finished runs, in the order given.

    Raises:
        EvaluationError: a run without its ``before`` and ``after`` reports, its ledger or a reported step.
        RunDirError: no run directory.
    """
    return [_result(RunDir(directory)) for directory in directories]


def _result(run: RunDir) -> RunResult:
    config, steps = run.config(), _steps(run)
    before, after = (EvalReport.load(run.evaluation / f"{label}.json") for label in ("before", "after"))
    change = compare(before, after)
    times = [step["perf/step_time"] for step in steps if step.get("perf/step_time") is not None]
    return {
        "run_id": run.run_id,
        "seeds": {"train": config.train.seed, "feeder": config.feeder.seed, "evaluation": config.evaluation.seed},
        "steps": len(steps),
        "seconds": sum(times) if len(times) == len(steps) else None,
        "sessions": {
            name: {"sessions": it.sessions, "state": it.state, "at_least": it.at_least, "n_sessions": it.seen}
            for name, it in sessions_to_convergence([run]).trials[0].personas.items()
        },
        "satisfied": change.satisfied.as_share(),
        "relevant": change.relevant.as_share(),
        "truncated": change.truncated.as_share(),
        "satisfied_by_persona": {name: of.satisfied.as_share() for name, of in change.personas.items()},
        "truncated_ratio": _first_last(steps, "rollout/truncated_ratio"),
        "entropy": _first_last(steps, "train/entropy"),
    }


def _steps(run: RunDir) -> list[dict[str, Any]]:
    try:
        steps = [json.loads(line) for line in run.metrics_file.read_text().splitlines()]
    except (OSError, ValueError) as error:
        raise EvaluationError(f"metrics of run {run.run_id} cannot be read: {error}") from error
    if not steps:
        raise EvaluationError(f"run {run.run_id} has not reported a step yet ({run.metrics_file} is empty)")
    return steps


def _first_last(steps: Sequence[dict[str, Any]], metric: str) -> FirstLast:
    return {"first": steps[0].get(metric), "last": steps[-1].get(metric)}
