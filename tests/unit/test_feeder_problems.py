from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from itertools import islice
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from openclaw_core.config import ConfigError, RunConfig, load_config
from openclaw_core.feeder import ProblemError, held_out_problems, training_problems
from openclaw_core.feeder.problems import ProblemStream
from openclaw_core.feeder.sources import open_source
from openclaw_core.feeder.texts import digit_numbers
from tests.hub_server import Hub

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
        ("gsm9k", "no problem source 'gsm9k'; there are: gsm_symbolic, gsm8k, hf://"),
        ("hf://gsm8k", "no problem source 'hf://gsm8k'"),
        ("file:///nowhere/train.csv", "must end in .json, .jsonl, .parquet"),
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


ROWS = [{"question": f"Ann has {n} pens and buys {n + 1} more?", "answer": f"...\n#### {2 * n + 1:,}"} for n in range(600, 630)]
BARE = [{"question": row["question"], "ground_truth_answer": 2 * n + 1} for n, row in enumerate(ROWS, 600)]


def parquet(rows: list[dict]) -> bytes:
    content = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), content)
    return content.getvalue()


@pytest.mark.parametrize("rows", [ROWS, BARE], ids=["gsm8k", "bare"])
@pytest.mark.parametrize("suffix", ["json", "jsonl", "parquet"])
def test_every_form_and_kind_of_file_gives_the_same_problems(tmp_path: Path, rows: list[dict], suffix: str) -> None:
    path = tmp_path / f"grade.{suffix}"
    lines = "\n".join(map(json.dumps, rows)).encode()
    path.write_bytes({"json": json.dumps(rows).encode(), "jsonl": lines, "parquet": parquet(rows)}[suffix])
    problems = next(open_source(f"file://{path}").passes("train", 1))
    assert sorted(problems) == sorted((row["question"], str(row["ground_truth_answer"])) for row in BARE)


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("a.json", b"{}", "is no list"),
        ("a.json", b"[", "not JSON"),
        ("a.json", b'[{"question": "1 2", "answer": "3"}, {"q": 1}]', "item 2: not of the form"),
        ("a.parquet", b"PAR1", "no whole Parquet file"),
        ("a.parquet", parquet([{"text": "1 2"}]), "row 1: not of the form"),
    ],
)
def test_useless_json_and_parquet_are_refused_with_their_fault(
    tmp_path: Path, name: str, content: bytes, complaint: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ProblemError, match=complaint):
        held_out_problems(config(**{"feeder.problems": f"file://{tmp_path / name}"}))


@pytest.mark.parametrize("position", [0, 4])
def test_shards_share_the_problems_without_overlap(gsm_file: str, position: int) -> None:
    def stream(**sharding: int) -> ProblemStream:
        overrides = {f"feeder.{name}": value for name, value in sharding.items()}
        return training_problems(config(**{"feeder.problems": gsm_file, "feeder.epochs": 1} | overrides), position)

    parts = [list(stream(shard=shard, shards=3)) for shard in range(3)]
    assert sorted((problem for part in parts for problem in part), key=lambda problem: problem.number) == list(stream())
    assert [len(part) for part in parts] == ([8, 7, 7] if position == 0 else [6, 6, 6])


def test_a_shard_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"feeder.shard=2, but feeder.shards=2; shards count from 0"):
        config(**{"feeder.shard": 2, "feeder.shards": 2})


@pytest.mark.parametrize(("epochs", "position", "left"), [(1, 0, 22), (2, 0, 44), (2, 40, 4), (1, 22, 0), (1, 500, 0)])
def test_epochs_end_the_stream_wherever_it_was_opened(gsm_file: str, epochs: int, position: int, left: int) -> None:
    settings = config(**{"feeder.problems": gsm_file, "feeder.epochs": epochs})
    problems = list(training_problems(settings, position))
    assert len(problems) == left
    assert [problem.number for problem in problems] == list(range(position + 1, position + left + 1))


def test_epochs_of_problems_without_an_end_are_refused() -> None:
    with pytest.raises(
        ProblemError, match=r"gsm_symbolic is made as it is asked for and has no end: set feeder\.epochs=0, not 2"
    ):
        training_problems(config(**{"feeder.epochs": 2}))


def test_a_file_name_that_no_header_can_carry_is_not_in_the_problem_id(tmp_path: Path) -> None:
    path = tmp_path / "数学 grade.json"
    path.write_text(json.dumps(BARE))
    problem = next(training_problems(config(**{"feeder.problems": f"file://{path}"})))
    assert problem.problem_id == "_grade-train-1-0"


SHA, OLD = "a" * 40, "b" * 40
ASK = """
import json, sys
from itertools import islice
from openclaw_core.config import load_config
from openclaw_core.feeder import ProblemError, held_out_problems, training_problems
for spec in sys.argv[1:]:
    config = load_config("local-cpu", {"feeder.problems": spec, "evaluation.problems": 3})
    try:
        held_out = [problem.question for problem in held_out_problems(config)]
        print(json.dumps([held_out, [problem.question for problem in islice(training_problems(config), 20)]]))
    except ProblemError as error:
        print(json.dumps(str(error)))
"""


def ask_hub(url: str, home: Path, *specs: str) -> list:
    """The problems of each source, read by a process whose hub is at ``url``: the hub's client reads its address at import."""
    environment = {
        **os.environ,
        "HF_ENDPOINT": url,
        "HF_HOME": str(home),
        "HF_HUB_OFFLINE": "0",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    }
    done = subprocess.run([sys.executable, "-c", ASK, *specs], env=environment, capture_output=True, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_gsm8k_comes_from_the_hub_and_from_its_cache_where_the_hub_is_away(tmp_path: Path) -> None:
    test_rows, old = ROWS[:5], ROWS[20:25]
    hub = Hub(
        "openai/gsm8k",
        {
            SHA: {
                "main/train-00000-of-00002.parquet": parquet(ROWS[4:15]),
                "main/train-00001-of-00002.parquet": parquet(ROWS[15:]),
                "main/test-00000-of-00001.parquet": parquet(test_rows),
                "socratic/train-00000-of-00001.parquet": b"not asked for",
                "README.md": b"",
            },
            OLD: {"data/train-00000-of-00001.parquet": parquet(old)},
        },
        {"main": SHA, "v1": OLD},
    )
    specs = ["gsm8k", "hf://openai/gsm8k@v1", "hf://openai/gsm8k@v1/other", "hf://nobody/nothing"]
    with hub.serving() as url:
        newest, pinned, missing, unknown = ask_hub(url, tmp_path, *specs)
    held_out, trained = newest
    assert set(held_out) <= {row["question"] for row in test_rows}
    assert set(trained) <= {row["question"] for row in ROWS[4:]} - set(held_out)
    assert not any("socratic" in path or "README" in path for path in hub.asked)
    assert {*pinned[0], *pinned[1]} == {row["question"] for row in old}
    assert set(pinned[0]).isdisjoint(pinned[1])
    assert "has no Parquet files in the folder other" in missing
    assert "hf://nobody/nothing cannot be downloaded" in unknown and "Check name, revision, access" in unknown
    assert ask_hub(url, tmp_path, "gsm8k") == [newest]
