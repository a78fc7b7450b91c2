from __future__ import annotations

import json
from itertools import islice
from pathlib import Path

import pytest

from openclaw_core.config import RunConfig, load_config
from openclaw_core.feeder import ProblemError, held_out_problems, training_problems
from openclaw_core.feeder.rules import digit_numbers

MAX_CHARS = 120


def config(**overrides) -> RunConfig:
    return load_config("local-cpu", {"feeder.max_question_chars": MAX_CHARS, "evaluation.problems": 8} | overrides)


@pytest.fixture
def gsm_file(tmp_path: Path) -> str:
    rows = [
        {"question": f"Ann has {n} pens and buys {n + 1} more?", "answer": f"...\n#### {1000 + 2 * n:,}"} for n in range(30)
    ]
    rows.append({"question": "Only 1 number?", "answer": "#### 1"})
    rows.append({"question": "Long 1 2 " * 50, "answer": "#### 1"})
    path = tmp_path / "grade.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)) + "\n\n")
    return f"file://{path}"


@pytest.fixture(params=["gsm_symbolic", "file"])
def source(request, gsm_file: str) -> str:
    return gsm_file if request.param == "file" else request.param


def test_problems_are_short_unique_have_two_numbers_and_no_added_suffix(source: str) -> None:
    problems = list(islice(training_problems(config(**{"feeder.problems": source})), 20))
    questions = [problem.question for problem in problems]
    assert len(set(questions)) == len({problem.problem_id for problem in problems}) == 20
    assert all(len(question) <= MAX_CHARS and len(digit_numbers(question)) >= 2 for question in questions)
    assert not any("final answer" in question or "units" in question for question in questions)


def test_stream_is_determined_by_its_seed(source: str) -> None:
    first, again, other = (
        list(islice(training_problems(config(**{"feeder.problems": source, "feeder.seed": seed})), 10)) for seed in (1, 1, 2)
    )
    assert first == again
    assert [problem.question for problem in first] != [problem.question for problem in other]


@pytest.mark.parametrize("position", [0, 1, 7, 25])
def test_stream_goes_on_from_a_position(source: str, position: int) -> None:
    whole = list(islice(training_problems(config(**{"feeder.problems": source})), position + 5))
    resumed = training_problems(config(**{"feeder.problems": source}), position)
    assert resumed.position == position
    assert list(islice(resumed, 5)) == whole[position:]
    assert resumed.position == position + 5


def test_training_never_meets_a_held_out_question(gsm_file: str) -> None:
    settings = config(**{"feeder.problems": gsm_file})
    held_out = {problem.question for problem in held_out_problems(settings)}
    trained = [problem.question for problem in islice(training_problems(settings), 60)]
    assert len(held_out) == 8
    assert held_out.isdisjoint(trained)
    assert len(set(trained[:22])) == 22 and set(trained[22:44]) == set(trained[:22])


def test_held_out_questions_are_drawn_apart_even_with_the_same_seed() -> None:
    settings = config(**{"evaluation.seed": 1, "feeder.seed": 1})
    held_out = {problem.question for problem in held_out_problems(settings)}
    assert held_out.isdisjoint(problem.question for problem in islice(training_problems(settings), 500))


def test_answers_of_a_gsm_file_are_the_result_alone(gsm_file: str) -> None:
    problem = next(training_problems(config(**{"feeder.problems": gsm_file})))
    n = int(min(digit_numbers(problem.question), key=int))
    assert problem.answer == str(1000 + 2 * n)


@pytest.mark.parametrize(
    ("spec", "complaint"),
    [
        ("gsm9k", "no problem source 'gsm9k'; there are: gsm_symbolic, file://"),
        ("file:///nowhere/train.jsonl", "/nowhere/train.jsonl cannot be read"),
    ],
)
def test_unknown_source_is_refused(spec: str, complaint: str) -> None:
    with pytest.raises(ProblemError, match=complaint):
        held_out_problems(config(**{"feeder.problems": spec}))


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("", "holds no problems"),
        ('{"question": "1 2", "answer": "#### 3"}\nnot json\n', "line 2"),
        ('{"question": "1 2"}\n', "line 1"),
        ('["question"]\n', "line 1"),
        ('{"question": "Ann has 1 and 2", "answer": "#### 3"}\n', "holds only 1 usable"),
        ('{"question": "no numbers", "answer": "#### 3"}\n', "no usable problem"),
    ],
)
def test_useless_file_is_refused_with_its_fault(tmp_path: Path, content: str, complaint: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text(content)
    with pytest.raises(ProblemError, match=complaint):
        held_out_problems(config(**{"feeder.problems": f"file://{path}"}))


def test_file_that_is_wholly_held_out_leaves_nothing_to_train_on(gsm_file: str) -> None:
    settings = config(**{"feeder.problems": gsm_file, "evaluation.problems": 30})
    with pytest.raises(ProblemError, match="no usable problem"):
        next(training_problems(settings))
