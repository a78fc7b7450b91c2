"""From judged turns to samples: fitness, splicing, truncated answers."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openclaw_core.config import load_config
from openclaw_core.ledger import JudgedTurn
from openclaw_core.loop.samples import build_sample, hint_refusal, unfit
from openclaw_core.types import DropReason, FinishReason, HintRefusal, Sampling
from tests.unit.test_ledger import make_judgement, make_turn

HINTS = ("Answer briefly.", "Answer in one paragraph.")


def encode(hint: str) -> tuple[int, ...]:
    return tuple(hint.encode())


def sample(
    turn_changes: dict[str, Any] | None = None, hints: tuple[str, ...] = HINTS, reward: int = -1, **overrides: Any
) -> Any:
    config = load_config("local-cpu", {"rollout.truncated": "keep", **overrides})
    judged = JudgedTurn(make_turn(**(turn_changes or {})), make_judgement(reward=reward, hints=hints))
    return build_sample(judged, config, encode)


def test_every_hint_is_spliced_in_right_before_the_end_of_the_last_user_message() -> None:
    built = sample()
    assert built.teacher_prompt_ids == tuple((1, 2, *encode(hint), 3) for hint in HINTS)
    assert built.prompt_ids == (1, 2, 3)


@given(st.lists(st.integers(0, 99), min_size=1, max_size=30), st.data())
def test_deleting_the_spliced_ids_gives_the_prompt_back(prompt: list[int], data: st.DataObject) -> None:
    offset = data.draw(st.integers(0, len(prompt)))
    for hint, spliced in zip(
        HINTS, sample({"prompt_ids": tuple(prompt), "hint_offset": offset}).teacher_prompt_ids, strict=True
    ):
        assert spliced[:offset] + spliced[offset + len(encode(hint)) :] == tuple(prompt)


@pytest.mark.parametrize(
    ("changes", "overrides"),
    [({"hint_offset": None}, {}), ({}, {"loss.w_opd": 0.0}), ({"finish_reason": FinishReason.LENGTH}, {})],
    ids=["no user message", "OPD is off", "truncated and kept"],
)
def test_no_teacher_prompt_where_there_is_no_opd(changes: dict[str, Any], overrides: dict[str, Any]) -> None:
    assert sample(changes, **overrides).teacher_prompt_ids == ()


def test_at_most_max_candidates_hints_are_used_shortest_first() -> None:
    assert sample(**{"loss.max_candidates": 1}).hints == HINTS[:1]


def test_a_hint_that_breaks_the_context_limit_is_left_out() -> None:
    limit = 3 + 2 + len(encode(HINTS[0]))
    built = sample(**{"model.context_length": limit + 60, "rollout.max_response_tokens": 16})
    assert built.hints == HINTS
    built = sample(
        {"prompt_ids": (1,) * 63, "hint_offset": 1}, **{"model.context_length": limit + 60, "rollout.max_response_tokens": 16}
    )
    assert built.hints == HINTS[:1]


@pytest.mark.parametrize(
    ("changes", "answer", "reason"),
    [
        ({}, None, None),
        ({}, "3", None),
        ({}, "one", HintRefusal.QUOTES_ANSWER),
        ({"hint_offset": None}, None, HintRefusal.NO_USER_MESSAGE),
        ({"prompt_ids": (1,) * 38}, None, None),
        ({"prompt_ids": (1,) * 39}, None, HintRefusal.CONTEXT_LIMIT),
    ],
)
def test_a_hint_is_refused_for_what_it_says_or_for_where_it_would_go(
    changes: dict[str, Any], answer: str | None, reason: HintRefusal | None
) -> None:
    config = load_config("local-cpu", {"model.context_length": 64, "rollout.max_response_tokens": 16})
    hint = "Answer in one paragraph."
    assert hint_refusal(make_turn(**changes), hint, answer, config, encode) is reason


@pytest.mark.parametrize(
    ("handling", "mask", "reward", "hinted"),
    [("keep", 1, 1.0, False), ("keep_opd", 1, 1.0, True), ("mask", 0, 1.0, False), ("negative", 1, -1.0, False)],
)
def test_truncated_answers(handling: str, mask: int, reward: float, hinted: bool) -> None:
    built = sample({"finish_reason": FinishReason.LENGTH}, reward=1, **{"rollout.truncated": handling})
    assert (built.loss_mask, built.reward, bool(built.hints)) == ((mask, mask), reward, hinted)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, None),
        ({"weight_version": 3}, None),
        ({"weight_version": 2}, DropReason.STALE),
        ({"sampling": Sampling(temperature=0.0, max_new_tokens=1)}, DropReason.GREEDY),
        ({"rollout_logprobs": (-1.0,)}, DropReason.INVALID_LOGPROBS),
        ({"rollout_logprobs": (-1.0, math.nan)}, DropReason.INVALID_LOGPROBS),
        ({"rollout_logprobs": (-1.0, -math.inf)}, DropReason.INVALID_LOGPROBS),
    ],
)
def test_unfit_turns_have_a_reason(changes: dict[str, Any], reason: DropReason | None) -> None:
    assert unfit(make_turn(**{"weight_version": 4, **changes}), version=4, max_staleness=1) is reason
