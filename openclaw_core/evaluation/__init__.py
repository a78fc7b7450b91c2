"""Proof that it learns: held-out problems before and after, and sessions to convergence (docs/EVALUATION.md)."""

from openclaw_core.evaluation.heldout import HeldOut, evaluate
from openclaw_core.evaluation.record import EvaluationError
from openclaw_core.evaluation.report import Comparison, EvalReport, compare

__all__ = ["Comparison", "EvalReport", "EvaluationError", "HeldOut", "compare", "evaluate"]
