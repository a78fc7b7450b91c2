"""The judge in /metrics: the same numbers as in a step's metrics, since the start of the service."""

from __future__ import annotations

from collections.abc import Callable

from openclaw_core.gateway.metrics import Reading
from openclaw_core.judge.stats import Tally, percentile
from openclaw_core.loop.judging import Judging


def judge_readings(judging: Judging) -> list[Reading]:
    """What is read of ``judging`` when /metrics is asked for."""
    total: Tally = judging.stats.total
    return [
        Reading(
            "openclaw_judge_away_seconds", "Without a quorum for so long; 0: the judge is there.", _value(judging, "away_s")
        ),
        Reading("openclaw_judge_turns_unavailable", "Turns that wait for too few votes.", _value(judging, "unavailable")),
        Reading(
            "openclaw_judge_unavailable", "Rounds of votes without a quorum.", lambda: {"": total.unavailable}, counts_up=True
        ),
        Reading(
            "openclaw_judge_calls",
            "Calls, by what came of them.",
            lambda: {
                "vote": total.answered - total.unparsable,
                "unparsable": total.unparsable,
                "failed": total.failed,
            },
            "result",
            counts_up=True,
        ),
        Reading(
            "openclaw_judge_agreement",
            "Share of the votes that say what most say on their question.",
            lambda: {"": total.with_majority / total.valid} if total.valid else {},
        ),
        Reading("openclaw_judge_latency_seconds", "Of calls that were answered.", lambda: _latency(total), "statistic"),
        Reading(
            "openclaw_judge_tokens",
            "As the judge's servers count them.",
            lambda: {"prompt": total.prompt_tokens or 0, "completion": total.completion_tokens or 0},
            "kind",
            counts_up=True,
        ),
        Reading(
            "openclaw_judge_hints_refused", "Hints that were not used.", lambda: dict(total.refused), "reason", counts_up=True
        ),
    ]


def _value(judging: Judging, name: str) -> Callable[[], dict[str, float]]:
    return lambda: {"": float(judging.status()[name])}


def _latency(total: Tally) -> dict[str, float]:
    p95 = percentile(total.seconds, 0.95)
    return {} if p95 is None else {"mean": total.seconds_sum / total.answered, "p95": p95}
