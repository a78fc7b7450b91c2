"""Which metrics are plotted, how they are called, and what is healthy where the run's configuration has a bound."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from openclaw_core.config import RunConfig
from openclaw_core.config.health import Limit
from openclaw_core.health.rules import RULES, Kind

Bounds = tuple[float | None, float | None]
"""Lowest and highest healthy value; None: no bound on that side."""


@dataclass(frozen=True, slots=True)
class Panel:
    """One small plot. ``lines``: label → key of docs/METRICS.md."""

    title: str
    lines: Mapping[str, str]
    limits: Bounds = (None, None)
    """Of the axis, where the metric's range is known."""
    stacked: bool = False


PANELS = (
    Panel("Reward, mean", {"reward": "rollout/reward_mean"}, (-1, 1)),
    Panel(
        "Share of new sessions",
        {"satisfied": "rollout/satisfied_share", "relevant": "rollout/relevant_share"},
        (0, 1),
    ),
    Panel("Share with a hint", {"hints": "rollout/hint_rate"}, (0, 1)),
    Panel("Response length, tokens", {"length": "rollout/response_len"}, (0, None)),
    Panel("Share cut off at the limit", {"cut off": "rollout/truncated_ratio"}, (0, 1)),
    Panel("Entropy, nats", {"entropy": "train/entropy"}, (0, None)),
    Panel("Gradient norm", {"norm": "train/grad_norm"}, (0, None)),
    Panel(
        "Log-prob difference, nats",
        {
            "trainer, rollout": "train/train_rollout_logprob_abs_diff_unshaped",
            "trainer, engine now": "train/engine_parity_abs_diff",
        },
        (0, None),
    ),
    Panel("OPD |delta|, mean", {"|delta|": "train/opd_abs_mean"}, (0, None)),
    Panel("Overlap with the teacher's top K", {"overlap": "train/sel_overlap"}, (0, None)),
    Panel("Response tokens per second", {"tokens/s": "perf/tokens_per_s"}, (0, None)),
    Panel(
        "Phases, seconds",
        {phase: f"perf/{phase}_time" for phase in ("collect", "score", "train", "publish")},
        (0, None),
        stacked=True,
    ),
)


def healthy(config: RunConfig) -> dict[str, Bounds]:
    """Metric → what is healthy by the run's own health rules, where their bounds are plain numbers."""
    limits: dict[str, Limit] = dict(config.health.limits)
    found: dict[str, Bounds] = {}
    for rule in RULES:
        unit = config.loss.adv_diff_clip if rule.times_clip else 1.0
        bound = limits[rule.name].bound
        if bound is None or unit <= 0 or rule.kind not in (Kind.ABOVE, Kind.BELOW):
            continue
        low, high = found.get(rule.metric, (None, None))
        if rule.kind is Kind.ABOVE:
            high = bound * unit if high is None else min(high, bound * unit)
        else:
            low = bound * unit if low is None else max(low, bound * unit)
        found[rule.metric] = (low, high)
    return found
