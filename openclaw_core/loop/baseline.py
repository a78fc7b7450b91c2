"""The advantage's baseline: what rewards have been like so far for the person who talks (ALGORITHM 6, persona_mean).

A pure function of the steps before, whose metrics carry what is needed: a replay after a crash trains with the same numbers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from openclaw_core.ledger import StepRecord
from openclaw_core.types import Sample

PERSONAS, REWARDS = "rollout/personas", "rollout/rewards_by_persona"


def with_baselines(samples: Sequence[Sample], personas: Sequence[str], before: Iterable[StepRecord]) -> list[Sample]:
    """Each sample with its person, and with the mean reward that this person's had in the steps ``before``; 0 without any.

    ``personas``: by the name that the feeder told; "" for everybody whom nobody has named.
    """
    totals: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    for record in before:
        for persona, (total, count) in record.metrics.get(REWARDS, {}).items():
            totals[persona] += total
            counts[persona] += count
    means = {persona: totals[persona] / count for persona, count in counts.items()}
    return [
        replace(sample, persona=persona, baseline=means.get(persona, 0.0))
        for sample, persona in zip(samples, personas, strict=True)
    ]


def baseline_metrics(samples: Sequence[Sample]) -> dict[str, Any]:
    """What the steps after, and a replay of this one, need to know of it: persons in order, and (sum, number) of rewards."""
    rewards: dict[str, tuple[float, int]] = {}
    for sample in samples:
        total, count = rewards.get(sample.persona, (0.0, 0))
        rewards[sample.persona] = (total + sample.reward, count + 1)
    return {PERSONAS: [sample.persona for sample in samples], REWARDS: rewards}
