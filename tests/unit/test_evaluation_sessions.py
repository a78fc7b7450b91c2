"""Sessions to convergence from ledgers, trials on disk, and the results of finished runs."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import structlog
from typer.testing import CliRunner, Result

from openclaw_core.cli import app
from openclaw_core.config import load_config
from openclaw_core.config.feedback import EvaluationConfig
from openclaw_core.evaluation import EvaluationError
from openclaw_core.evaluation.results import run_results
from openclaw_core.evaluation.sessions import first_answers, sessions_to_convergence, trials_beside
from openclaw_core.evaluation.trials import Asked, Trials
from openclaw_core.ledger import Ledger, Outcome
from openclaw_core.loop.summary import read_summary, summarise, summary_rows
from openclaw_core.rundir import RunDir, create_run
from tests.control_stub import StubService
from tests.ports import free_ports
from tests.unit.test_evaluation import report
from tests.unit.test_ledger import make_turn

PERSONAS = ("student", "ta", "teacher")
Story = dict[str, str]
"""Persona → how its sessions went, + or - each."""


def tell(ledger: Ledger, session: str, persona: str, began: float, took: float, satisfied: bool, relevant: bool = True) -> None:
    """A session of two turns: the first answer, and one that always satisfies."""
    turn = make_turn(f"{session}-0", session_id=session, created_at=began + took, generate_s=took)
    for index, good in enumerate((satisfied, True)):
        ledger.add_turn(replace(turn, turn_id=f"{session}-{index}", index=index, created_at=turn.created_at + 100 * index))
        ledger.add_outcome(Outcome(session, persona, index == 0, good, relevant, 1), step=1)


@pytest.fixture
def command() -> Iterator[Callable[..., Result]]:
    """The command line; its logging writes to a stream that ends with it."""
    yield lambda *arguments: CliRunner().invoke(app, [str(argument) for argument in arguments])
    structlog.reset_defaults()


@pytest.fixture
def make_run(tmp_path: Path) -> Callable[..., RunDir]:
    def make(name: str, story: Story, **overrides: object) -> RunDir:
        values = {"paths.runs": str(tmp_path), **{key.replace("__", "."): value for key, value in overrides.items()}}
        run = create_run(load_config("local-cpu", values), name)
        ledger = Ledger(run.ledger_file)
        for persona, sessions in story.items():
            for n, sign in enumerate(sessions):
                tell(ledger, f"{persona}-{n}", persona, began=float(n), took=0.5, satisfied=sign == "+")
        ledger.close()
        return run

    return make


def test_first_answers_come_in_the_order_in_which_the_sessions_began(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.sqlite")
    tell(ledger, "quick", "student", began=2.0, took=1.0, satisfied=True)  # answered first
    tell(ledger, "slow", "student", began=1.0, took=9.0, satisfied=False)
    tell(ledger, "other", "ta", began=0.0, took=1.0, satisfied=True, relevant=False)
    assert ledger.sessions() == {"student": 2, "ta": 1}
    # The ledger is open elsewhere and being written, as that of a live run.
    assert first_answers(tmp_path / "ledger.sqlite", PERSONAS) == {"student": [False, True], "ta": [False], "teacher": []}
    tell(ledger, "next", "teacher", began=3.0, took=1.0, satisfied=True)
    assert first_answers(tmp_path / "ledger.sqlite", PERSONAS)["teacher"] == [True]


def test_a_first_answer_that_was_told_twice_counts_once(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.sqlite")
    tell(ledger, "s", "student", began=0.0, took=1.0, satisfied=False)
    ledger.add_outcome(Outcome("s", "student", True, True, True, 1), step=1)
    assert first_answers(tmp_path / "ledger.sqlite", ["student"]) == {"student": [False]}


def test_reading_writes_nothing(make_run: Callable[..., RunDir]) -> None:
    run = make_run("r", {"student": "+++"})
    before = run.ledger_file.read_bytes()
    sessions_to_convergence([run])
    assert run.ledger_file.read_bytes() == before


@pytest.mark.parametrize(
    ("outcome", "told"),
    [
        (
            Outcome("s", "plumber", True, True, True, 1),
            "session s is of persona 'plumber', which is none of the run's: student",
        ),
        (Outcome("s", "student", True, True, True, 1), "session s was answered, but none of its turns was captured"),
    ],
)
def test_outcomes_that_do_not_fit_the_run_are_refused(tmp_path: Path, outcome: Outcome, told: str) -> None:
    Ledger(tmp_path / "ledger.sqlite").add_outcome(outcome, step=1)
    with pytest.raises(EvaluationError, match=told):
        first_answers(tmp_path / "ledger.sqlite", ["student"])


def test_a_ledger_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EvaluationError, match=r"ledger\.sqlite does not exist"):
        first_answers(tmp_path / "ledger.sqlite", PERSONAS)
    (tmp_path / "ledger.sqlite").write_text("no database at all, whatever its name says")
    with pytest.raises(EvaluationError, match=r"ledger\.sqlite cannot be read as a ledger"):
        first_answers(tmp_path / "ledger.sqlite", PERSONAS)


def test_runs_are_trials(make_run: Callable[..., RunDir]) -> None:
    runs = [
        make_run("a", {"student": "+++", "ta": "-+++", "teacher": "--+++"}),
        make_run("b", {"student": "-+++", "ta": "-+++", "teacher": "+-"}),
    ]
    found = sessions_to_convergence(runs)
    assert {name: str(mean) for name, mean in found.personas.items()} == {
        "student": "3.5 ± 0.7",
        "ta": "4.0 ± 0.0",
        "teacher": "≥ 5.0 ± 0.0",
    }
    assert [trial.name for trial in found.trials] == ["a", "b"]
    assert found.joint.not_converged == 1


def test_runs_with_other_rules_are_not_averaged(make_run: Callable[..., RunDir]) -> None:
    runs = [make_run("a", {}), make_run("b", {}, evaluation__consecutive=2)]
    with pytest.raises(EvaluationError, match=r"a and b have other rules: evaluation\.consecutive 3 and 2"):
        sessions_to_convergence(runs)


def test_the_command_prints_a_table_or_json(make_run: Callable[..., RunDir], command: Callable[..., Result]) -> None:
    run = make_run("a", {"student": "+++", "ta": "-+++", "teacher": "--"})
    shown = command("evaluate", run.path, "--sessions")
    assert "≥ 5 (not in 2)" in shown.output, shown.output
    assert "Sessions until 3 first answers in a row meet the persona's rule, at most 72; mean ± sd of 1: a" in shown.output
    body = json.loads(command("evaluate", "a", "--runs", run.path.parent, "--sessions", "--json").stdout)
    assert body["own_sessions"]["personas"]["ta"]["mean"] == 4
    assert "seeds_beside" not in body


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--sessions", "--follow"], "choose one"),
        (["--seeds", "3"], "--seeds goes with --follow"),
        (["--sessions", "--label", "x"], "leave out --sessions and --follow"),
        (["--follow", "--against", "before"], "leave out --sessions and --follow"),
        (["{run}"], "2 runs are given; several go with --sessions only"),
    ],
)
def test_options_that_do_not_go_together_are_refused(
    make_run: Callable[..., RunDir], command: Callable[..., Result], options: list[str], told: str
) -> None:
    run = make_run("a", {})
    shown = command("evaluate", run.path, *(option.format(run=run.path) for option in options))
    assert shown.exit_code == 2
    assert told in " ".join(shown.output.replace("│", " ").split())


RULE = EvaluationConfig(consecutive=2, max_sessions=4)


def asked(seed: int, session: int, satisfied: bool | None, persona: str = "student") -> Asked:
    skipped = "" if satisfied is not None else "no time"
    return Asked(seed=seed, persona=persona, session=session, version=0, satisfied=satisfied, skipped=skipped)


def test_trials_are_kept_and_sessions_after_a_gap_wait_for_it(tmp_path: Path) -> None:
    trials = Trials.open(tmp_path, ["student"], RULE)
    assert trials.report() is None
    for one in (asked(1, 1, True), asked(1, 3, True), asked(2, 1, None), asked(2, 2, True)):
        trials.add(one)
    again = Trials.open(tmp_path, ["student"], RULE)
    assert again.answers() == trials.answers() == {"seed 1": {"student": [True]}, "seed 2": {"student": [None, True]}}
    assert (again.skipped, again.find(2, "student", 1)) == (1, asked(2, 1, None))
    again.add(asked(1, 2, True))
    assert again.answers()["seed 1"] == {"student": [True, True, True]}
    assert (again.settled(1, "student"), again.settled(2, "student")) == (True, False)


def test_a_line_that_a_killed_writer_left_is_written_over(tmp_path: Path) -> None:
    Trials.open(tmp_path, ["student"], RULE).add(asked(1, 1, True))
    file = tmp_path / "trials.jsonl"
    whole = file.read_bytes()
    os.truncate(file, len(whole))
    file.write_bytes(whole + b'{"seed": 1, "perso')
    again = Trials.open(tmp_path, ["student"], RULE)
    assert file.read_bytes() != whole, "a reader leaves the file as it is: its writer may be alive"
    again.add(asked(1, 2, False))
    assert Trials.open(tmp_path, ["student"], RULE).answers() == {"seed 1": {"student": [True, False]}}


def test_trials_of_another_form_are_refused_with_their_line(tmp_path: Path) -> None:
    Trials.open(tmp_path, ["student"], RULE).add(asked(1, 1, True))
    with (tmp_path / "trials.jsonl").open("a") as file:
        file.write('{"seed": 1}\n')
    with pytest.raises(EvaluationError, match=r"trials\.jsonl, line 2 cannot be read"):
        Trials.open(tmp_path, ["student"], RULE)


def test_seeds_beside_several_runs_are_counted_together(make_run: Callable[..., RunDir]) -> None:
    runs = [make_run(name, {}, feeder__personas=["student"]) for name in ("a", "b")]
    assert trials_beside(runs) is None
    for run in runs:
        run.evaluation.mkdir()
        trials = Trials.open(run.evaluation, ["student"], run.config().evaluation)
        for session in (1, 2, 3):
            trials.add(asked(1, session, True))
    found = trials_beside(runs)
    assert found is not None
    assert ([trial.name for trial in found.trials], found.joint.mean) == (["a/seed 1", "b/seed 1"], 3)


def finish(run: RunDir, steps: list[dict[str, object]]) -> RunDir:
    run.evaluation.mkdir()
    for label, satisfied in (("before", 2), ("after", 8)):
        report(label, {"student": satisfied}).write(run.evaluation / f"{label}.json")
    run.metrics_file.write_text("".join(json.dumps({"step": n, **step}) + "\n" for n, step in enumerate(steps, 1)))
    return run


def test_the_result_of_a_run_is_what_its_files_say(make_run: Callable[..., RunDir]) -> None:
    steps = [
        {"rollout/truncated_ratio": 0.9, "train/entropy": 1.5, "perf/step_time": 2.0},
        {"rollout/truncated_ratio": 0.5, "train/entropy": 1.0, "perf/step_time": 3.0},
    ]
    run = finish(make_run("a", {"student": "-+++-", "ta": "--"}, train__seed=5, feeder__seed=6), steps)
    (result,) = run_results([run.path])
    assert json.loads(json.dumps(result))["sessions"] == {
        "student": {"sessions": 4, "state": "converged", "at_least": 4, "n_sessions": 4},
        "ta": {"sessions": None, "state": "censored", "at_least": 5, "n_sessions": 2},
        "teacher": {"sessions": None, "state": "censored", "at_least": 3, "n_sessions": 0},
    }
    assert (result["run_id"], result["steps"], result["seconds"]) == ("a", 2, 5.0)
    assert result["seeds"] == {"train": 5, "feeder": 6, "evaluation": 7}
    assert result["truncated_ratio"] == {"first": 0.9, "last": 0.5}
    assert result["entropy"] == {"first": 1.5, "last": 1.0}
    assert (result["satisfied"]["before"], result["satisfied"]["after"]) == (0.2, 0.8)
    assert result["satisfied_by_persona"]["student"] == result["satisfied"]
    assert result["relevant"]["difference"] == 0


def test_a_step_without_a_time_leaves_the_sum_unknown(make_run: Callable[..., RunDir]) -> None:
    run = finish(make_run("a", {}), [{"perf/step_time": 2.0}, {"perf/step_time": None}])
    (result,) = run_results([run.path])
    assert result["seconds"] is None
    assert result["entropy"] == {"first": None, "last": None}


def test_a_run_without_a_step_has_no_result(make_run: Callable[..., RunDir]) -> None:
    with pytest.raises(EvaluationError, match="run a has not reported a step yet"):
        run_results([finish(make_run("a", {}), []).path])


def test_the_summary_of_a_run_says_both_metrics(make_run: Callable[..., RunDir]) -> None:
    run = finish(make_run("a", {"student": "-+++", "ta": "--"}, feeder__personas=["student", "ta"], **free_ports()), [{}])
    trials = Trials.open(run.evaluation, ["student", "ta"], run.config().evaluation)
    for session in (1, 2, 3):
        for persona in ("student", "ta"):
            trials.add(asked(1, session, True, persona))
    config = run.config()
    with StubService(token=run.secrets().control_token).serving(config.ports.control):
        summary = summarise(config, run)
    assert read_summary(run) == json.loads(json.dumps(summary))
    rows = dict(summary_rows(summary))
    assert rows["sessions to converge"] == "student 4, ta ≥ 5 (not in 2); average ≥ 4.5"
    assert rows["trials beside (1)"] == "student 3.0, ta 3.0; average 3.0"
    assert rows["held-out, satisfied"].startswith("0.200 [0.057, 0.510] before, 0.800 [0.490, 0.943] after; difference +0.600")
    assert rows["held-out, cut off"].startswith("0.000 [0.000, 0.278] before")
