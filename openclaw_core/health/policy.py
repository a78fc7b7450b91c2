"""What a verdict leads to: whom to tell, and what the next step is trained with. Pure functions of the steps before.

A step's metrics carry ``health/state``, ``health/findings`` (rule → since which step) and ``health/action``, and what the
next step does is read from there: a replay after a crash trains with the same numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import isfinite
from typing import Any, get_args

from openclaw_core.config.health import Action
from openclaw_core.config.schema import RunConfig
from openclaw_core.health.rules import BY_NAME, Rule, State
from openclaw_core.health.verdict import Finding, Row, Verdict, assess

STRENGTH: tuple[Action, ...] = get_args(Action)
"""From the mildest on."""
LOWERING = 0.5
"""What lower_w_opd multiplies w_opd with, a step."""


@dataclass(frozen=True, slots=True)
class Health:
    """The verdict after a step, and what is new about it."""

    verdict: Verdict
    raised: tuple[Finding, ...] = ()
    """Findings that the step before did not have."""
    changed: bool = False
    """A finding is new, or the state is another than the step before's."""
    action: Action | None = None
    """What is to be done after this step: the strongest that the policy has for what is new. None: nothing is new."""

    def metrics(self) -> dict[str, Any]:
        """For the step's record."""
        findings = {finding.rule: finding.since for finding in self.verdict.findings}
        return {"health/state": str(self.verdict.state), "health/findings": findings, "health/action": self.action}

    def as_json(self) -> dict[str, Any]:
        """For GET /status, events and the webhook. JSON has no number for what is none: null, and the text says it."""
        findings = [
            {**asdict(finding), "value": finding.value if isfinite(finding.value) else None, "text": str(finding)}
            for finding in self.verdict.findings
        ]
        raised = [finding.rule for finding in self.raised]
        return {
            "step": self.verdict.step,
            "state": str(self.verdict.state),
            "findings": findings,
            "raised": raised,
            "changed": self.changed,
            "action": self.action,
        }


def examine(rows: Sequence[Row], config: RunConfig) -> Health:
    """The health after the last of ``rows``; those before it carry what was found then."""
    verdict = assess(rows, config)
    before: Row = rows[-2] if len(rows) > 1 else {}
    known: Mapping[str, int] = before.get("health/findings", {})
    raised = tuple(finding for finding in verdict.findings if finding.rule not in known)
    changed: bool = bool(raised) or verdict.state != before.get("health/state", State.HEALTHY)
    strengths = [STRENGTH.index(_action(BY_NAME[finding.rule], config)) for finding in raised]
    return Health(verdict, raised, changed, STRENGTH[max(strengths)] if strengths else None)


def w_opd_in_force(last: Row | None, config: RunConfig) -> float:
    """The weight of the distillation term for the step after ``last``, whose row carries what was in force and found then.

    Halved for each step at whose end a finding about OPD held whose policy is lower_w_opd, down to the floor, and not raised
    again: a run that was ill at a weight is not tried with it a second time.
    """
    if last is None:
        return config.loss.w_opd
    w_opd = float(last.get("train/w_opd", config.loss.w_opd))
    ill = [BY_NAME[name] for name in last.get("health/findings", {}) if name in BY_NAME]
    if any(_action(rule, config) == "lower_w_opd" for rule in ill):
        return max(config.health.w_opd_floor, LOWERING * w_opd)
    return w_opd


def _action(rule: Rule, config: RunConfig) -> Action:
    """Lowering the weight of OPD does nothing about a rule that is not about it: somebody is told."""
    asked = config.health.on_stop if rule.state is State.STOP else config.health.on_warn
    return "notify" if asked == "lower_w_opd" and not rule.about_opd else asked
