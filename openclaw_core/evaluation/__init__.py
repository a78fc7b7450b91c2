"""Proof that it learns: held-out problems before and after, with intervals."""

from openclaw_core.evaluation.heldout import HeldOut, evaluate
from openclaw_core.evaluation.report import Comparison, EvalReport, EvaluationError, compare

__all__ = ["Comparison", "EvalReport", "EvaluationError", "HeldOut", "compare", "evaluate"]
