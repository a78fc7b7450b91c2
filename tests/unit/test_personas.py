from __future__ import annotations

import asyncio
import json
import random
import re
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import yaml

from openclaw_core.config import load_config
from openclaw_core.feeder import PersonaError, load_personas, training_problems
from openclaw_core.feeder.persona import PERSONAS, StyleRule
from openclaw_core.feeder.rules import is_relevant, meets_style, satisfies
from openclaw_core.feeder.simulator import ScriptedSimulator

LOCAL = load_personas("local", ["student", "ta", "teacher"])
STUDENT, TA, TEACHER = LOCAL
QUESTION = "Ann has 7 pens and buys 12 more. How many {pens} has she?"


def test_chain_opens_with_the_question_and_quotes_the_previous_result() -> None:
    assert STUDENT.open(QUESTION, "", 3) == f"I have a homework question. {QUESTION} How do I solve it?"
    assert TA.open(QUESTION, "one two\nthree four", 3) == (
        f'Question: {QUESTION}\nAnswer of a student: "one two three"\nIs the answer right? Please comment.'
    )
    assert TEACHER.open(QUESTION, "{quote}", 3).splitlines()[1] == 'The assistant noted: "{quote}"'


@pytest.mark.parametrize(
    ("names", "complaint"),
    [
        (["student", "parent"], "no persona local/parent; there are: local/student, local/ta, local/teacher"),
        (["ta", "teacher"], "ta quotes the person before it"),
        ([], "no personas are named"),
    ],
)
def test_impossible_chain_is_refused(names: list[str], complaint: str) -> None:
    with pytest.raises(PersonaError, match=complaint):
        load_personas("local", names)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"style": {}}, "demands nothing"),
        ({"style": {"no_markdwon": True}}, "no_markdwon"),
        ({"style": {"min_words": -1}}, "min_words"),
        ({"relevance": {"min_words": 12}}, "min_numbers or min_overlap"),
        ({"first_message": "How do I solve it?"}, "question"),
        ({"first_message": "{question} {answer}"}, "answer"),
        ({"first_message": "{question"}, "no template"),
        ({"thanks": []}, "thanks"),
        ({"sentinel": "done"}, "sentinel"),
        ({"first_message_with_files": "{file}"}, "allowed are {question} and {quote}"),
        ({"files": {"/etc/passwd": "x"}}, "must be relative"),
        ({"files": {"../x": "x"}}, "must be relative"),
        ({"files": {"homework/a": "{answer}"}}, "allowed is {question}"),
        ({"name": "other"}, "named otherwise"),
        ("just text", "persona file"),
    ],
)
def test_malformed_persona_file_is_refused(tmp_path: Path, monkeypatch, change: Any, complaint: str) -> None:
    monkeypatch.setattr("openclaw_core.feeder.persona.PERSONAS", tmp_path)
    content = yaml.safe_load((PERSONAS / "local" / "student.yaml").read_text())
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "student.yaml").write_text(yaml.safe_dump(content | change if isinstance(change, dict) else change))
    with pytest.raises(PersonaError, match=complaint):
        load_personas("mine", ["student"])


def simulator(persona, seed: int = 1) -> ScriptedSimulator:
    return ScriptedSimulator(persona, QUESTION, "It is 19.", 20, random.Random(seed))


LONG = "Ann has 7 pens at first and then she buys 12 more pens, and you can add the two numbers together to get 19. "
IDEAL = LONG * 2
OFF_TOPIC = "Let's talk of bears that live in the woods and eat fish from the cold river all day long. " * 3


@pytest.mark.parametrize("persona", LOCAL, ids=lambda persona: persona.name)
async def test_persona_thanks_for_an_answer_that_meets_both_rules(persona) -> None:
    reaction = await simulator(persona).react(IDEAL)
    assert (reaction.satisfied, reaction.relevant) == (True, True)
    assert reaction.message in persona.thanks


@pytest.mark.parametrize(
    ("persona", "answer"),
    [(STUDENT, IDEAL + "\n\n**19**"), (TA, LONG), (TEACHER, IDEAL.replace("you can", "we").replace("together", "up"))],
    ids=lambda value: getattr(value, "name", ""),
)
async def test_persona_complains_of_style_alone_where_only_the_style_is_wrong(persona, answer: str) -> None:
    reaction = await simulator(persona).react(answer)
    assert (reaction.satisfied, reaction.relevant) == (False, True)
    assert reaction.message in persona.complaints.style


@pytest.mark.parametrize("persona", LOCAL, ids=lambda persona: persona.name)
async def test_persona_complains_of_relevance_alone_where_only_that_is_wrong(persona) -> None:
    assert meets_style(persona.style, OFF_TOPIC) and not is_relevant(persona.relevance, OFF_TOPIC, QUESTION)
    reaction = await simulator(persona).react(OFF_TOPIC)
    assert (reaction.satisfied, reaction.relevant) == (False, False)
    assert reaction.message in persona.complaints.relevance


@pytest.mark.parametrize("persona", [STUDENT, TA, TEACHER], ids=lambda persona: persona.name)
async def test_persona_names_both_faults_style_first(persona) -> None:
    reaction = await simulator(persona).react("**No.**")
    assert reaction.message in {f"{a} {b}" for a in persona.complaints.style for b in persona.complaints.relevance}


async def test_same_seed_says_the_same_and_seeds_differ() -> None:
    said = [[(await simulator(TA, seed).react("No.")).message for _ in range(2)] for seed in (*range(20), *range(20))]
    assert said[:20] == said[20:]
    assert len({text for texts in said for text in texts}) > 1


def test_local_people_say_what_they_have_always_said() -> None:
    """The golden file was written before personas could be played by a model; runs with it stay comparable."""
    golden = json.loads((Path(__file__).parents[1] / "golden" / "people_local.json").read_text(encoding="utf-8"))
    feeder = load_config("local-cpu").feeder
    said = [_of_problem(feeder, problem) for problem in islice(training_problems(load_config("local-cpu")), 3)]
    assert [entry for entries in said for entry in entries] == golden


def _of_problem(feeder, problem) -> list[dict[str, Any]]:
    """What each persona says to a bad answer and then to a good one."""
    entries, previous = [], ""
    good = f"Let's look at {problem.question} together, and you can see that it goes like this: {problem.question} " * 2
    for persona in load_personas(feeder.persona_set, feeder.personas):
        rng = random.Random(f"{feeder.seed}/{problem.problem_id}/{persona.name}")
        person = ScriptedSimulator(persona, problem.question, previous, feeder.quote_words, rng)
        said = [asyncio.run(person.first())]
        for answer in ("**No.**" * 2, good):
            reaction = asyncio.run(person.react(answer))
            said.append(reaction.message)
        entries.append({"problem": problem.problem_id, "persona": persona.name, "said": said, "satisfied": reaction.satisfied})
        previous = good
    return entries


SETS = [("homework", "en"), ("homework-zh", "zh")]
HOMEWORK = [persona for name, _ in SETS for persona in load_personas(name, ["student", "ta", "teacher"])]


@pytest.mark.parametrize(("name", "language"), SETS)
def test_shipped_homework_sets_end_with_their_sentinels(name: str, language: str) -> None:
    chain = load_personas(name, ["student", "ta", "teacher"])
    assert [persona.sentinel for persona in chain] == ["HOMEWORK_DONE", "GRADING_DONE", "COMMENT_DONE"]
    assert {persona.language for persona in chain} == {language}
    assert [persona.quotes for persona in chain] == [False, True, True]


@pytest.mark.parametrize("persona", HOMEWORK, ids=lambda persona: f"{persona.name}-{persona.language}")
def test_what_a_homework_persona_says_tells_nothing_of_its_wish(persona) -> None:
    """Neither the first message nor a complaint names a count, a format or a warm phrase."""
    said = [persona.first_message, persona.first_message_with_files, *persona.complaints.style, *persona.complaints.relevance]
    told = [
        "bold",
        "list",
        "bullet",
        "markdown",
        "latex",
        "words",
        "100",
        "160",
        "加粗",
        "列表",
        "标题",
        *persona.style.warm_phrases,
    ]
    assert [(text, word) for text in said for word in told if word in text.lower()] == []
    assert all(persona.sentinel not in text for text in [*said, *persona.thanks])


@pytest.mark.parametrize(
    ("answer", "by"),
    [
        (LONG, {"student"}),
        (LONG + "\n\n1. **19**", set()),
        (LONG * 5, {"student", "ta"}),
        (LONG + "Well done, keep it up!", {"student", "teacher"}),
    ],
    ids=["plain", "marked", "long", "warm"],
)
def test_the_homework_personas_want_what_they_say(answer: str, by: set[str]) -> None:
    assert {persona.name for persona in HOMEWORK[:3] if satisfies(persona, answer, QUESTION)} == by


def test_with_files_the_question_is_in_the_file_and_not_in_the_message() -> None:
    student = HOMEWORK[0]
    assert student.brings(QUESTION) == {"homework/problem.txt": f"Problem:\n{QUESTION}\n\nSolution:\n"}
    assert QUESTION in student.open(QUESTION, "", 10)
    assert QUESTION not in student.open(QUESTION, "", 10, with_files=True)
    for persona in HOMEWORK:
        assert "homework/problem.txt" in persona.open(QUESTION, "x", 10, with_files=True)
        assert persona.closing_request is not None and "homework/problem.txt" in persona.closing_request


async def test_the_sentinel_comes_with_the_thanks_and_never_with_a_complaint() -> None:
    student = HOMEWORK[0]
    reaction = await simulator(student).react(LONG)
    assert (reaction.done, reaction.message) in {(True, f"{thanks} HOMEWORK_DONE") for thanks in student.thanks}
    reaction = await simulator(student).react("No.")
    assert not reaction.done and "HOMEWORK_DONE" not in reaction.message


def test_a_directory_of_ones_own_is_a_persona_set(tmp_path: Path) -> None:
    (tmp_path / "boss.yaml").write_text(
        (PERSONAS / "local" / "student.yaml").read_text().replace("name: student", "name: boss")
    )
    assert load_personas(str(tmp_path), ["boss"])[0].name == "boss"
    with pytest.raises(PersonaError, match=f"no persona {tmp_path.name}/student; there are: {tmp_path.name}/boss"):
        load_personas(str(tmp_path), ["student"])


def test_an_unknown_set_is_named_with_those_that_exist() -> None:
    with pytest.raises(PersonaError, match="no persona set 'home'; there are: homework, homework-zh, local; a directory"):
        load_personas("home", ["student"])


def test_the_persona_of_the_documentation_does_what_is_said_there(tmp_path: Path, monkeypatch, capsys) -> None:
    page = (Path(__file__).parents[2] / "docs" / "JUDGE.md").read_text(encoding="utf-8")
    section = page[page.index("## Your own persona") :]
    (tmp_path / "people").mkdir()
    (tmp_path / "people" / "coach.yaml").write_text(re.findall(r"```yaml\n(.+?)```", section, re.DOTALL)[0])
    monkeypatch.chdir(tmp_path)
    exec(re.findall(r"```python\n(.+?)```", section, re.DOTALL)[0], {})
    assert capsys.readouterr().out.split("\n") == ["True True", "False True", "True False", ""]


@pytest.mark.parametrize(
    ("rule", "answer", "met"),
    [
        ({"max_words": 3}, "one two three", True),
        ({"max_words": 3}, "one two three four", False),
        ({"patterns": [r"\?$", "ann"]}, "What has Ann?", True),
        ({"patterns": [r"\?$", "ann"]}, "What has she?", False),
        ({"patterns": [r"\?$"]}, "Why? Because.", False),
        ({"forbidden": ["the answer is"]}, "So The Answer is 3", False),
        ({"forbidden": ["the answer is"]}, "It is 3", True),
    ],
)
def test_a_rule_of_ones_own_is_a_bound_or_a_regular_expression(rule: dict[str, Any], answer: str, met: bool) -> None:
    assert meets_style(StyleRule.model_validate(rule), answer) is met


@pytest.mark.parametrize(
    ("rule", "complaint"),
    [({"patterns": ["("]}, "pattern"), ({"min_words": 5, "max_words": 4}, "no answer has"), ({"max_words": 0}, "max_words")],
)
def test_a_rule_that_nothing_can_meet_is_refused(tmp_path: Path, rule: dict[str, Any], complaint: str) -> None:
    content = yaml.safe_load((PERSONAS / "local" / "student.yaml").read_text())
    (tmp_path / "student.yaml").write_text(yaml.safe_dump(content | {"style": rule}))
    with pytest.raises(PersonaError, match=complaint):
        load_personas(str(tmp_path), ["student"])
