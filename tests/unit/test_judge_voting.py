from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openclaw_core.judge.voting import agreement, choose_hints, has_quorum, majority, quorum
from openclaw_core.types import HintRefusal, Question, Vote


def reward(value: int | None) -> Vote:
    return Vote(Question.REWARD, value, None, "")


def hint(text: str | None, value: int | None = 1) -> Vote:
    return Vote(Question.HINT, value, text, "")


@pytest.mark.parametrize(
    ("values", "verdict"),
    [
        ([1, 1, -1], 1),
        ([-1, -1, 0], -1),
        ([0, 0, 1], 0),
        ([1, -1], 0),
        ([1, 0], 0),
        ([1, -1, 0], 0),
        ([1, 1, -1, -1, 0], 0),
        ([1, 1, -1, 0], 1),
        ([None, None, -1], -1),
        ([1], 1),
    ],
)
def test_majority_is_the_plurality_and_a_tie_at_the_top_is_neutral(values: list[int | None], verdict: int) -> None:
    assert majority([reward(value) for value in values]) == verdict


@given(st.lists(st.sampled_from([1, 0, -1, None]), max_size=15), st.randoms(use_true_random=False))
def test_majority_is_symmetric_and_does_not_depend_on_order(values: list[int | None], rng) -> None:
    verdict = majority([reward(value) for value in values])
    assert majority([reward(None if value is None else -value) for value in values]) == -verdict
    rng.shuffle(values)
    assert majority([reward(value) for value in values]) == verdict
    counts = Counter(value for value in values if value is not None)
    if verdict:
        assert all(counts[verdict] > count for value, count in counts.items() if value != verdict)


def test_hint_votes_have_no_say_in_the_reward() -> None:
    assert majority([reward(1), hint(None, -1), hint(None, -1)]) == 1


@pytest.mark.parametrize(("asked", "needed"), [(1, 1), (2, 1), (3, 2), (4, 2), (5, 3), (15, 8)])
def test_quorum_is_half_rounded_up(asked: int, needed: int) -> None:
    assert quorum(asked) == needed


def test_each_question_needs_its_own_quorum() -> None:
    votes = [reward(1), reward(1), reward(None), hint(None, -1), hint(None, None), hint(None, None)]
    assert has_quorum(votes, Question.REWARD, 3)
    assert not has_quorum(votes, Question.HINT, 3)


@pytest.mark.parametrize(
    ("votes", "expected"),
    [
        ([], (0, 0)),
        ([reward(1), reward(1), reward(-1)], (2, 3)),
        ([reward(1), reward(0), reward(-1)], (1, 3)),
        ([reward(1), reward(None), hint(None, -1), hint("a hint", 1), hint(None, -1)], (3, 4)),
    ],
)
def test_agreement_counts_the_votes_that_say_what_most_say_on_their_question(
    votes: list[Vote], expected: tuple[int, int]
) -> None:
    assert agreement(votes) == expected


def test_hints_count_only_with_a_positive_vote_and_enough_characters() -> None:
    votes = [hint("short hint", 1), hint("a longer hint", -1), hint("a much longer hint", None), hint("eleven char", 1)]
    assert choose_hints(votes, min_chars=11, max_candidates=3) == (("eleven char",), (("short hint", "too_short"),))


def test_hints_that_differ_in_case_and_space_only_are_one() -> None:
    votes = [hint("Use the  numbers."), hint("use the numbers."), hint("Use the numbers of it.")]
    assert choose_hints(votes, 11, 3) == (("use the numbers.", "Use the numbers of it."), ())


def test_a_refused_hint_is_listed_with_its_reason_and_leaves_its_place_to_the_next() -> None:
    votes = [hint("It is 72, you see."), hint("Use the numbers of it."), hint("Use the numbers of it, please.")]

    def refuse(text: str) -> HintRefusal | None:
        return HintRefusal.QUOTES_ANSWER if "72" in text else None

    chosen = choose_hints(votes, 11, 2, refuse)
    assert chosen == (
        ("Use the numbers of it.", "Use the numbers of it, please."),
        (("It is 72, you see.", "quotes_answer"),),
    )


@given(
    st.lists(st.text(st.characters(codec="utf-8"), max_size=30), max_size=8),
    st.integers(1, 20),
    st.integers(1, 4),
    st.randoms(),
)
def test_hints_are_few_long_enough_distinct_and_shortest_first(texts: list[str], min_chars: int, most: int, rng) -> None:
    hints, refused = choose_hints([hint(text) for text in texts], min_chars, most)
    assert len(hints) <= most
    assert all(len(text) >= min_chars for text in hints)
    assert all(len(text) < min_chars for text, _ in refused)
    assert [len(text) for text in hints] == sorted(len(text) for text in hints)
    assert len({" ".join(text.casefold().split()) for text in hints}) == len(hints)
    rng.shuffle(texts)
    assert choose_hints([hint(text) for text in texts], min_chars, most) == (hints, refused)
