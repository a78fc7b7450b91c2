"""Is the run well? Rules over the metrics of its steps → a verdict with reasons → what is done about it (docs/HEALTH.md)."""

from openclaw_core.health.policy import Health, examine, w_opd_in_force
from openclaw_core.health.rules import RULES, Kind, Rule, State
from openclaw_core.health.verdict import Finding, Row, Verdict, assess

__all__ = [
    "RULES",
    "Finding",
    "Health",
    "Kind",
    "Row",
    "Rule",
    "State",
    "Verdict",
    "assess",
    "examine",
    "w_opd_in_force",
]
