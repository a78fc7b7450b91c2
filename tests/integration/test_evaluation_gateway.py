"""The held-out evaluation against the real gateway over HTTP."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from openclaw_core.evaluation import EvalReport, EvaluationError, HeldOut, compare, evaluate
from openclaw_core.feeder import FeederError, held_out_problems, load_personas
from tests.gateway_world import API_KEY, World, build_world
from tests.models import tiny_llama

STUDENT, TA, TEACHER = load_personas("local", ["student", "ta", "teacher"])
PROBLEMS = 5


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("model"))


@pytest.fixture
def build(model_dir: Path) -> Callable[..., World]:
    small = {"evaluation.problems": PROBLEMS, "rollout.max_response_tokens": 400, "model.context_length": 2000}
    return lambda script, **overrides: build_world(model_dir, script, small | overrides)


def repeats_the_question(prompt: str) -> str:
    """Satisfies the student; too cold for the teacher, and long enough for the TA."""
    question = re.findall(r"(?:homework question\.|Question:|student asked:) (.+)", prompt)[0]
    return f"One may put it like this: {question} ".replace("together", "in all") * 3


def answers_in_a_list(prompt: str) -> str:
    return "1. One\n2. Two"


async def run(world: World, directory: Path, label: str = "before", prompts: HeldOut | None = None) -> EvalReport:
    async with world.serving_gateway():
        return await evaluate(world.config, world.gateway_url, API_KEY, directory, label, prompts)


async def test_first_evaluation_makes_the_prompts_from_its_own_answers(build, tmp_path: Path) -> None:
    world = build(repeats_the_question)
    report = await run(world, tmp_path / "evaluation")
    held_out = HeldOut.model_validate_json((tmp_path / "evaluation" / "heldout.json").read_bytes())
    questions = tuple(problem.question for problem in held_out_problems(world.config))
    assert held_out.questions == questions
    for n, question in enumerate(questions):
        answer = repeats_the_question(f"Question: {question}").strip()
        assert held_out.messages["student"][n] == STUDENT.open(question, "", 20)
        assert held_out.messages["ta"][n] == TA.open(question, answer, 20)
        assert held_out.messages["teacher"][n] == TEACHER.open(question, answer, 20)
    assert {name: tally.satisfied for name, tally in report.personas.items()} == {
        "student": PROBLEMS,
        "ta": PROBLEMS,
        "teacher": 0,
    }
    assert (report.total.n, report.total.satisfied, report.total.relevant) == (15, 10, 15)
    assert [sample.persona for sample in report.samples] == ["student"] * 3 + ["ta"] * 3 + ["teacher"] * 3


async def test_later_evaluation_sees_the_same_prompts_with_the_same_seeds(build, tmp_path: Path) -> None:
    world = build(repeats_the_question)
    before = await run(world, tmp_path)
    world.engine.script, world.engine.weight_version = answers_in_a_list, 7
    after = await run(world, tmp_path, "after")
    asked = [
        {(world.engine.text(request), request.sampling.seed) for request in half}
        for half in (world.engine.requests[:15], world.engine.requests[15:])
    ]
    assert asked[0] == asked[1]
    assert len({seed for _, seed in asked[0]}) == 15
    assert (before.versions, after.versions) == ((0,), (7,))
    assert compare(before, after).satisfied.difference == pytest.approx(-10 / 15)


async def test_requests_are_side_turns_sampled_as_the_preset_says(build, tmp_path: Path) -> None:
    world = build(answers_in_a_list, **{"rollout.temperature": 0.9, "rollout.repetition_penalty": 1.1})
    report = await run(world, tmp_path)
    assert not world.journal
    samplings = [request.sampling for request in world.engine.requests]
    assert {(one.temperature, one.repetition_penalty, one.max_new_tokens) for one in samplings} == {(0.9, 1.1, 400)}
    assert (report.temperature, report.max_tokens) == (0.9, 400)


async def test_answers_cut_at_the_limit_are_counted(build, tmp_path: Path) -> None:
    world = build(repeats_the_question, **{"rollout.max_response_tokens": 8})
    assert (await run(world, tmp_path)).total.truncated_share == 1


async def test_concurrency_is_bounded(build, tmp_path: Path) -> None:
    world = build(answers_in_a_list, **{"evaluation.concurrency": 2})
    await run(world, tmp_path)
    assert world.engine.most_busy == 2


async def test_evaluation_that_is_there_already_asks_nothing(build, tmp_path: Path) -> None:
    world = build(answers_in_a_list)
    report = await run(world, tmp_path)
    asked = len(world.engine.requests)
    assert await run(world, tmp_path) == report
    assert len(world.engine.requests) == asked
    assert sorted(path.name for path in tmp_path.iterdir()) == ["before.json", "heldout.json"]


async def test_given_prompts_are_used_instead_of_stored_ones(build, tmp_path: Path) -> None:
    world = build(answers_in_a_list)
    questions = tuple(problem.question for problem in held_out_problems(world.config))
    prompts = HeldOut(questions=questions, messages=dict.fromkeys(("student", "ta", "teacher"), ("Hello?",) * PROBLEMS))
    report = await run(world, tmp_path, "before", prompts)
    assert {sample.message for sample in report.samples} == {"Hello?"}
    assert not (tmp_path / "heldout.json").exists()


async def test_prompts_of_another_configuration_are_refused(build, tmp_path: Path) -> None:
    await run(build(answers_in_a_list), tmp_path)
    with pytest.raises(EvaluationError, match=r"5 questions for student, ta, teacher, the configuration asks for 4"):
        await run(build(answers_in_a_list, **{"evaluation.problems": 4}), tmp_path, "after")


async def test_evaluation_that_fails_leaves_nothing_behind(build, tmp_path: Path) -> None:
    world = build(answers_in_a_list, **{"model.context_length": 60, "rollout.max_response_tokens": 50})
    with pytest.raises(FeederError, match="maximum context length"):
        await run(world, tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("label", ["", "../up", "heldout", "a b"])
async def test_label_that_is_no_file_name_is_refused(build, tmp_path: Path, label: str) -> None:
    with pytest.raises(EvaluationError, match="no name for a report"):
        await run(build(answers_in_a_list), tmp_path, label)
