"""Counting sessions to convergence, apart from where the sessions come from."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openclaw_core.config import ConfigError, load_config
from openclaw_core.config.feedback import EvaluationConfig
from openclaw_core.evaluation import EvaluationError
from openclaw_core.evaluation.convergence import Convergence, SessionsReport, State, count_sessions, spread
from openclaw_core.evaluation.tables import session_rows

ANSWERS = st.lists(st.sampled_from([True, False, None]), max_size=30)
RULES = st.integers(1, 12).flatmap(lambda cap: st.tuples(st.integers(1, min(cap, 4)), st.just(cap)))


def answers(text: str) -> list[bool | None]:
    """+ met the rule, - did not, ? nobody knows."""
    return [{"+": True, "-": False, "?": None}[sign] for sign in text]


@pytest.mark.parametrize(
    ("text", "state", "at_least", "seen", "words"),
    [
        ("+++", "converged", 3, 3, "3"),
        ("-+++", "converged", 4, 4, "4"),
        ("++-+++---", "converged", 6, 6, "6"),
        ("++?+++", "converged", 6, 6, "6"),
        ("", "censored", 3, 0, "≥ 3 (not in 0)"),
        ("++", "censored", 3, 2, "≥ 3 (not in 2)"),
        ("+-", "censored", 5, 2, "≥ 5 (not in 2)"),
        ("-------+", "censored", 10, 8, "≥ 10 (not in 8)"),
        ("-------+-", "censored", 10, 9, "≥ 10 (not in 9)"),
        ("-------+++", "converged", 10, 10, "10"),
        ("--------+++", "capped", 10, 10, "10 (cap)"),
        ("----------", "capped", 10, 10, "10 (cap)"),
    ],
)
def test_sessions_until_three_in_a_row_of_ten_at_most(text: str, state: str, at_least: int, seen: int, words: str) -> None:
    count = count_sessions(answers(text), 3, 10)
    assert (count.state, count.at_least, count.seen, str(count)) == (state, at_least, seen, words)
    assert count.sessions == (None if state == "censored" else at_least)


def test_published_replies_of_one_run_give_the_35th_session() -> None:
    """The first public system ships one run's 53 first replies: clean in sessions 22, 32 to 36 and 38 to 52, counted from 0."""
    clean = {22, *range(32, 37), *range(38, 53)}
    assert count_sessions([n in clean for n in range(53)], 3, 72).sessions == 35


@given(ANSWERS, RULES)
def test_the_number_is_the_end_of_the_first_streak_within_the_cap(found, rule) -> None:
    consecutive, cap = rule
    ends = [n for n in range(consecutive, len(found) + 1) if all(one is True for one in found[n - consecutive : n])]
    count = count_sessions(found, consecutive, cap)
    if ends and ends[0] <= cap:
        assert (count.state, count.sessions, count.seen) == (State.CONVERGED, ends[0], ends[0])
    elif len(found) >= cap:
        assert (count.state, count.sessions, count.seen) == (State.CAPPED, cap, cap)
    else:
        assert (count.state, count.sessions, count.seen) == (State.CENSORED, None, len(found))
    assert count.unknown == found[: count.seen].count(None)


@given(ANSWERS, ANSWERS, RULES)
def test_more_sessions_never_change_what_is_known_and_never_undercut_the_bound(found, more, rule) -> None:
    before, after = count_sessions(found, *rule), count_sessions(found + more, *rule)
    assert after.at_least >= before.at_least
    if before.state is not State.CENSORED:
        assert after == before


@given(ANSWERS, RULES)
def test_the_bound_of_a_censored_trial_is_reached_when_all_goes_well(found, rule) -> None:
    consecutive, cap = rule
    count = count_sessions(found, consecutive, cap)
    best = count_sessions(found + [True] * consecutive, consecutive, cap)
    assert best.at_least == count.at_least
    assert best.state is not State.CENSORED


@given(ANSWERS, st.integers(0, 29), RULES)
def test_an_unknown_answer_counts_as_one_that_failed(found, place, rule) -> None:
    unknown = [None if n == place else one for n, one in enumerate(found)]
    failed = [False if n == place else one for n, one in enumerate(found)]
    one, other = count_sessions(unknown, *rule), count_sessions(failed, *rule)
    assert (one.state, one.at_least, one.seen) == (other.state, other.at_least, other.seen)


@given(ANSWERS)
def test_a_longer_streak_takes_as_many_sessions_or_more(found) -> None:
    counts = [count_sessions(found, consecutive, 40).at_least for consecutive in range(1, 6)]
    assert all(shorter <= longer for shorter, longer in pairwise(counts))


@pytest.mark.parametrize(("consecutive", "cap"), [(0, 5), (6, 5), (3, 2)])
def test_a_streak_that_the_cap_forbids_is_refused(consecutive: int, cap: int) -> None:
    with pytest.raises(EvaluationError, match=rf"evaluation\.consecutive={consecutive} and evaluation\.max_sessions={cap}"):
        count_sessions([], consecutive, cap)


def test_a_streak_that_the_cap_forbids_is_refused_in_the_configuration() -> None:
    with pytest.raises(ConfigError, match=r"evaluation\.consecutive=4 cannot be reached within max_sessions=3"):
        load_config("local-cpu", {"evaluation.consecutive": 4, "evaluation.max_sessions": 3})


def counts(*values: int, state: State = State.CONVERGED) -> list[Convergence]:
    return [Convergence(state=state, at_least=value, seen=value) for value in values]


def test_mean_and_sample_deviation_over_trials() -> None:
    found = spread([[one] for one in counts(10, 12, 17)])
    assert (found.n, found.mean, found.lower_bound, found.not_converged) == (3, 13, False, 0)
    assert found.sd == pytest.approx(13**0.5)
    assert str(found) == "13.0 ± 3.6"


def test_one_trial_has_no_deviation() -> None:
    assert spread([counts(10)]).sd is None
    assert str(spread([counts(10)])) == "10.0"


def test_a_capped_trial_counts_as_the_cap_and_a_censored_one_makes_the_mean_a_bound() -> None:
    capped = spread([counts(10), counts(72, state=State.CAPPED)])
    assert (capped.mean, capped.lower_bound, capped.not_converged) == (41, False, 1)
    censored = spread([counts(10), counts(20, state=State.CENSORED)])
    assert (censored.mean, censored.lower_bound, censored.not_converged) == (15, True, 1)
    assert str(censored) == "≥ 15.0 ± 7.1"


RULE = EvaluationConfig(consecutive=2, max_sessions=6)


def test_joint_is_the_average_over_personas_trial_by_trial() -> None:
    report = SessionsReport.of(
        [
            ("a", {"student": answers("++"), "ta": answers("--++")}),
            ("b", {"student": answers("-++"), "ta": answers("---")}),
        ],
        RULE,
    )
    assert [found.mean for found in report.personas.values()] == [2.5, 4.5]
    assert (report.joint.mean, report.joint.sd) == (3.5, pytest.approx(0.5**0.5))
    assert (report.joint.lower_bound, report.joint.not_converged) == (True, 1)
    assert session_rows(report) == [
        {"persona": "student", "sessions": "2.5 ± 0.7", "trials": "2", "not converged": "0", "each": "2, 3"},
        {"persona": "ta", "sessions": "≥ 4.5 ± 0.7", "trials": "2", "not converged": "1", "each": "4, ≥ 5 (not in 3)"},
        {"persona": "joint average", "sessions": "≥ 3.5 ± 0.7", "trials": "2", "not converged": "1", "each": ""},
    ]
    assert SessionsReport.model_validate_json(report.model_dump_json()) == report


def test_trials_of_other_personas_are_not_averaged() -> None:
    with pytest.raises(EvaluationError, match="a has the personas student, but b has ta: not comparable"):
        SessionsReport.of([("a", {"student": []}), ("b", {"ta": []})], RULE)
    with pytest.raises(EvaluationError, match="one trial at least"):
        SessionsReport.of([], RULE)
    with pytest.raises(EvaluationError, match="a has no personas"):
        SessionsReport.of([("a", {})], RULE)
