from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openclaw_core.evaluation import EvalReport, EvaluationError, compare
from openclaw_core.evaluation.report import Finding, Tally
from openclaw_core.evaluation.wilson import newcombe, wilson

COUNTS = st.integers(1, 400).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n)))


@pytest.mark.parametrize(
    ("successes", "n", "low", "high"),
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)],
)
def test_wilson_interval_equals_newcombes_published_table(successes: int, n: int, low: float, high: float) -> None:
    """R. G. Newcombe, Statistics in Medicine 17 (1998) 857, table I, method 3."""
    assert wilson(successes, n) == pytest.approx((low, high), abs=5e-5)


@pytest.mark.parametrize(
    ("after", "before", "low", "high"),
    [
        ((56, 70), (48, 80), 0.0524, 0.3339),
        ((9, 10), (3, 10), 0.1705, 0.8090),
        ((6, 7), (2, 7), 0.0582, 0.8062),
        ((5, 56), (0, 29), -0.0381, 0.1926),
        ((0, 10), (0, 20), -0.1611, 0.2775),
        ((10, 10), (0, 20), 0.6791, 1.0),
        ((10, 10), (0, 10), 0.6075, 1.0),
    ],
)
def test_difference_interval_equals_newcombes_published_table(after, before, low: float, high: float) -> None:
    """R. G. Newcombe, Statistics in Medicine 17 (1998) 873, table II, method 10."""
    assert newcombe(*before, *after) == pytest.approx((low, high), abs=5e-5)


@given(COUNTS)
def test_interval_holds_its_share_and_mirrors(counts: tuple[int, int]) -> None:
    successes, n = counts
    low, high = wilson(successes, n)
    assert 0 <= low <= successes / n <= high <= 1
    assert wilson(n - successes, n) == pytest.approx((1 - high, 1 - low))


@given(COUNTS, COUNTS)
def test_difference_interval_holds_the_difference_and_turns_sign_when_swapped(before, after) -> None:
    low, high = newcombe(*before, *after)
    difference = after[0] / after[1] - before[0] / before[1]
    assert -1 - 1e-9 <= low <= difference + 1e-12 and difference - 1e-12 <= high <= 1 + 1e-9
    assert newcombe(*after, *before) == pytest.approx((-high, -low))


@pytest.mark.parametrize(("successes", "n"), [(1, 0), (3, 2), (-1, 2)])
def test_impossible_counts_are_refused(successes: int, n: int) -> None:
    with pytest.raises(ValueError, match="is no share"):
        wilson(successes, n)


def finding(persona: str, satisfied: bool, relevant: bool = True, words: int = 10, truncated: bool = False) -> Finding:
    return Finding(
        persona=persona,
        message="How?",
        answer="So.",
        satisfied=satisfied,
        relevant=relevant,
        words=words,
        truncated=truncated,
        version=0,
    )


def report(label: str, satisfied: dict[str, int], n: int = 10) -> EvalReport:
    findings = {name: [finding(name, i < count) for i in range(n)] for name, count in satisfied.items()}
    return EvalReport(
        label=label,
        created_at=0.0,
        model="m",
        versions=(0,),
        problems=n,
        seed=7,
        temperature=0.7,
        max_tokens=64,
        total=Tally.of([one for found in findings.values() for one in found]),
        personas={name: Tally.of(found) for name, found in findings.items()},
        samples=(),
    )


def test_tally_counts_shares_words_and_truncation() -> None:
    tally = Tally.of(
        [
            finding("ta", True, words=30),
            finding("ta", False, words=10, truncated=True),
            finding("ta", False, relevant=False, words=5),
            finding("ta", True, words=15),
        ]
    )
    assert (tally.n, tally.satisfied, tally.relevant) == (4, 2, 3)
    assert (tally.satisfied_share, tally.relevant_share, tally.mean_words, tally.truncated_share) == (0.5, 0.75, 15, 0.25)
    assert tally.satisfied_interval == wilson(2, 4)
    assert tally.relevant_interval == wilson(3, 4)


def test_comparison_gives_the_difference_over_all_and_of_each_persona() -> None:
    comparison = compare(report("before", {"student": 2, "ta": 5}), report("after", {"student": 8, "ta": 5}))
    assert comparison.satisfied.before == 7 / 20
    assert comparison.satisfied.after == 13 / 20
    assert comparison.satisfied.difference == pytest.approx(0.3)
    assert (comparison.satisfied.low, comparison.satisfied.high) == newcombe(7, 20, 13, 20)
    assert comparison.relevant.difference == 0
    assert comparison.personas["student"].satisfied.difference == pytest.approx(0.6)
    assert comparison.personas["ta"].satisfied.difference == 0


def test_reports_on_different_personas_are_not_compared() -> None:
    with pytest.raises(EvaluationError, match="before asked student but after asked student, ta"):
        compare(report("before", {"student": 2}), report("after", {"student": 8, "ta": 5}))


def test_report_that_is_missing_or_damaged_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(EvaluationError, match=r"before\.json"):
        EvalReport.load(tmp_path / "before.json")
    (tmp_path / "before.json").write_text(report("before", {"student": 1}).model_dump_json()[:-5])
    with pytest.raises(EvaluationError, match=r"before\.json"):
        EvalReport.load(tmp_path / "before.json")
