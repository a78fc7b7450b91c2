"""Metrics as sums that add up over micro-batches and ranks, divided once at the end (ALGORITHM 10)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from jaxtyping import Bool, Float
from torch import Tensor

Number = TypeVar("Number", Tensor, float)
Sums = dict[str, Tensor]
"""Scalar tensors by name; the same names in every micro-batch and on every rank of a run."""


@dataclass(frozen=True, slots=True)
class _Metric:
    numerator: str
    denominator: str
    total: bool = False
    """The numerator already carries the loss's weights 1/(N T_i): it is not divided, only absent where nothing counted."""
    needs_steps: bool = False
    """Exactly 0 by construction at a rollout's first optimiser step, hence None where there is only one."""


_METRICS = {
    "grpo_loss": _Metric("grpo_loss", "grpo_tokens", total=True),
    "opd_loss": _Metric("opd_loss", "opd_tokens", total=True),
    "kl": _Metric("kl", "kl_tokens", total=True),
    "entropy": _Metric("entropy", "tokens"),
    "tis_mean": _Metric("tis", "tis_tokens"),
    "tis_clipfrac": _Metric("tis_clipped", "tis_tokens"),
    "ppo_kl": _Metric("ppo_kl", "tokens", needs_steps=True),
    "grpo_clipfrac": _Metric("grpo_clipped", "grpo_tokens", needs_steps=True),
    "opd_clipfrac": _Metric("opd_clipped", "opd_pairs", needs_steps=True),
    "opd_abs_mean": _Metric("opd_abs", "opd_tokens"),
    "sel_overlap": _Metric("overlap", "opd_tokens"),
    "subset_size": _Metric("opd_pairs", "opd_tokens"),
    "c_star_mean": _Metric("c_star", "opd_tokens"),
    "train_rollout_logprob_abs_diff_shaped": _Metric("logprob_diff_shaped", "shaped_tokens"),
    "train_rollout_logprob_abs_diff_unshaped": _Metric("logprob_diff_unshaped", "unshaped_tokens"),
}


def add_sums(parts: Iterable[Mapping[str, Number]]) -> dict[str, Number]:
    """The sums of several micro-batches or ranks as one."""
    total: dict[str, Number] = {}
    for part in parts:
        for name, value in part.items():
            total[name] = total[name] + value if name in total else value
    return total


def mean_of_steps(sums: Mapping[str, Number], steps: int) -> dict[str, Number]:
    """The added sums of a rollout's optimiser steps, with losses as means over the steps instead of sums."""
    totals = {metric.numerator for metric in _METRICS.values() if metric.total} | {"loss"}
    return {name: value / steps if name in totals else value for name, value in sums.items()}


def finish_metrics(sums: Mapping[str, Tensor | float], *, single_step: bool) -> dict[str, float | None]:
    """The metrics of a whole batch.

    None where nothing counted (a term that is off, no hinted token) and, with ``single_step``, for ppo_kl and the clip
    fractions, which are 0 by construction with one optimiser step per rollout.
    """
    values = {name: float(value) for name, value in sums.items()}
    result: dict[str, float | None] = {}
    for name, metric in _METRICS.items():
        count = values.get(metric.denominator, 0.0)
        absent = count == 0 or (metric.needs_steps and single_step)
        result[name] = None if absent else values[metric.numerator] / (1 if metric.total else count)
    return result


def masked_sum(x: Float[Tensor, "*n"], rows: Bool[Tensor, "*n"]) -> Float[Tensor, ""]:
    """Sum over ``rows``, whatever the other rows hold; without a gradient."""
    return x.detach().where(rows, 0).sum()
