from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import yaml

from openclaw_core.feeder import PersonaError, load_personas
from openclaw_core.feeder.persona import PERSONAS
from openclaw_core.feeder.rules import is_relevant, meets_style
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
