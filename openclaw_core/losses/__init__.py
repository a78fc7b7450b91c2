"""The loss of docs/ALGORITHM.md in plain torch: output head, selection, GRPO + Top-K distillation + KL, metrics."""

from __future__ import annotations

from openclaw_core.losses.batch import mask_mismatch, token_weights
from openclaw_core.losses.config import HintSelection, LossConfig, ShapedTurns, SubsetMode
from openclaw_core.losses.errors import LossError
from openclaw_core.losses.head import HeadStats, WeightGrad, head_stats, logits_at
from openclaw_core.losses.hybrid import HybridInputs, HybridOutput, hybrid_loss
from openclaw_core.losses.metrics import Sums, add_sums, finish_metrics, mean_of_steps
from openclaw_core.losses.selection import Selection, Support, select
from openclaw_core.losses.topk_opd import OpdInputs

__all__ = [
    "HeadStats",
    "HintSelection",
    "HybridInputs",
    "HybridOutput",
    "LossConfig",
    "LossError",
    "OpdInputs",
    "Selection",
    "ShapedTurns",
    "SubsetMode",
    "Sums",
    "Support",
    "WeightGrad",
    "add_sums",
    "finish_metrics",
    "head_stats",
    "hybrid_loss",
    "logits_at",
    "mask_mismatch",
    "mean_of_steps",
    "select",
    "token_weights",
]
