"""From the metrics of a run's steps to a verdict: a pure function, so that a restarted service comes to the same one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isnan
from statistics import median
from typing import Any

from openclaw_core.config.health import Limit
from openclaw_core.config.schema import RunConfig
from openclaw_core.health.rules import BASELINE, RULES, Kind, Rule, State

Row = Mapping[str, Any]
"""A step's metrics with its number under ``step``, as in metrics.jsonl."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A rule that speaks."""

    rule: str
    state: State
    since: int
    """Step from which on the metric was beyond the bound."""
    value: float
    """The metric's last one."""
    bound: float
    reason: str
    """With value and bound, in words."""
    advice: str

    def __str__(self) -> str:
        return f"{self.reason}; {self.advice}"


@dataclass(frozen=True, slots=True)
class Verdict:
    """How the run is after ``step``; 0: before the first."""

    step: int
    findings: tuple[Finding, ...] = ()

    @property
    def state(self) -> State:
        """The worst of the findings'."""
        order = list(State)
        return max((finding.state for finding in self.findings), key=order.index, default=State.HEALTHY)


def assess(rows: Sequence[Row], config: RunConfig) -> Verdict:
    """The verdict over the steps so far, oldest first. A metric that is null or absent is no evidence."""
    limits: dict[str, Limit] = dict(config.health.limits)
    findings = (_finding(rule, limits[rule.name], rows, config) for rule in RULES)
    return Verdict(rows[-1]["step"] if rows else 0, tuple(finding for finding in findings if finding is not None))


def _finding(rule: Rule, limit: Limit, rows: Sequence[Row], config: RunConfig) -> Finding | None:
    unit = config.loss.adv_diff_clip if rule.times_clip else 1.0
    if limit.bound is None or unit <= 0:
        return None
    evidence = [(int(row["step"]), float(value)) for row in rows if (value := row.get(rule.metric)) is not None]
    values = [value for _, value in evidence]
    thresholds = _thresholds(rule.kind, values, limit.bound * unit)
    beyond = [
        threshold is not None and _is_beyond(rule, value, threshold)
        for value, threshold in zip(values, thresholds, strict=True)
    ]
    since = _since(beyond, limit.steps, config.health.clear_after)
    if since is None:
        return None
    (last, value), threshold = evidence[-1], thresholds[-1]
    assert threshold is not None  # there was one when the rule began to speak
    first = evidence[since][0]
    return Finding(rule.name, rule.state, first, value, threshold, _words(rule, first, last, value, threshold), rule.advice)


def _since(beyond: Sequence[bool], steps: int, clear_after: int) -> int | None:
    """Where a finding that still holds began: ``steps`` in a row raise it, ``clear_after`` in a row withdraw it."""
    since: int | None = None
    out = within = 0
    for i, is_beyond in enumerate(beyond):
        out, within = (out + 1, 0) if is_beyond else (0, within + 1)
        if since is None and out >= steps:
            since = i + 1 - out
        elif within >= clear_after:
            since = None
    return since


def _thresholds(kind: Kind, values: Sequence[float], bound: float) -> list[float | None]:
    """What each value is held against; None where the run is too young to say."""
    if kind in (Kind.GROWN, Kind.FALLEN):
        beginning = median(values[:BASELINE]) if len(values) > BASELINE else 0.0
        return [bound * beginning if i >= BASELINE else None for i in range(len(values))]
    if kind is Kind.COUNTED_UP:
        return [bound + (values[i - 1] if i else 0.0) for i in range(len(values))]
    if kind is Kind.LOST:
        best: float | None = None
        thresholds: list[float | None] = []
        for i in range(len(values)):
            if i >= BASELINE:
                mean = sum(values[i - BASELINE : i]) / BASELINE
                best = mean if best is None else max(best, mean)
            thresholds.append(None if best is None else best - bound)
        return thresholds
    return [bound] * len(values)


def _is_beyond(rule: Rule, value: float, threshold: float) -> bool:
    """Not a number is beyond any bound."""
    if isnan(value):
        return True
    if rule.kind in (Kind.BELOW, Kind.FALLEN, Kind.LOST):
        return value < threshold
    return value > threshold and value > rule.noise


def _words(rule: Rule, first: int, last: int, value: float, threshold: float) -> str:
    lower = rule.kind in (Kind.BELOW, Kind.FALLEN, Kind.LOST)
    bound = f"{'under' if lower else 'over'} {threshold:.3g}"
    whence = {
        Kind.GROWN: " by the run's beginning",
        Kind.FALLEN: " by the run's beginning",
        Kind.LOST: " by the run's best steps",
        Kind.COUNTED_UP: " of the step before",
    }.get(rule.kind, "")
    when = f"since step {first}" if last > first else f"at step {first}"
    return f"{rule.reason}: {rule.metric.rpartition('/')[2]} = {value:.3g}, {bound}{whence}, {when}"
