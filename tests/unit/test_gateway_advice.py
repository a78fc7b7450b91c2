"""What /status advises when requests come and nothing can be learned from them."""

from __future__ import annotations

from collections import Counter

import pytest

from openclaw_core.gateway.counts import ENOUGH, Counts, Found, advice
from openclaw_core.types import DropReason


def counts(inference: bool, drops: dict[DropReason, int] | None = None, next_states: int = 0, **requests: int) -> Counts:
    return Counts(inference, Counter({Found(name): n for name, n in requests.items()}), next_states, Counter(drops or {}))


@pytest.mark.parametrize(
    "well",
    [
        counts(True),
        counts(True, opened=ENOUGH - 1),
        counts(True, opened=500, history=1, next_states=1),
        counts(False, header=40, next_states=30),
        counts(False, side=500),
        counts(True, {DropReason.HISTORY_DIVERGED: 100}, 1, header=200),
    ],
)
def test_there_is_no_advice_where_all_is_well(well: Counts) -> None:
    assert advice(well) is None


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (counts(False, header=2, metadata=1, none=37, side=5), "37 of 40 requests carried no session id"),
        (counts(False, header=2, metadata=1, none=37), "set gateway.session_inference=on"),
        (
            counts(True, opened=ENOUGH, header=3),
            f"{ENOUGH} conversations without a session id were opened and none was continued",
        ),
        (counts(True, {DropReason.HISTORY_DIVERGED: 9}, header=10), "9 were dropped as history_diverged"),
    ],
)
def test_advice_says_what_is_wrong_and_what_to_set(bad: Counts, words: str) -> None:
    assert words in str(advice(bad))
