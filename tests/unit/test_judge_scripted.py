from __future__ import annotations

from itertools import cycle
from pathlib import Path

import pytest

from openclaw_core.config import load_config
from openclaw_core.feeder import load_personas
from openclaw_core.judge import Judge, JudgeError, ScriptedJudge, build_judge
from openclaw_core.judge.scripted import ScriptedTable
from openclaw_core.types import NextState, Question
from tests.judge_parts import TURN

PERSONAS = load_personas("local", ["student", "ta", "teacher"])
SUBJECTS = ["formatting", "length", "tone"]


def user(text: str) -> NextState:
    return NextState("user", text)


@pytest.fixture
def judge() -> Judge:
    return build_judge(load_config("local-cpu"))


@pytest.mark.parametrize("thanks", [text for persona in PERSONAS for text in persona.thanks])
async def test_thanks_of_every_persona_are_good_and_teach_no_hint(judge: Judge, thanks: str) -> None:
    judgement = await judge.judge(TURN, user(thanks))
    assert (judgement.reward, judgement.hints) == (1, ())


@pytest.mark.parametrize(
    ("complaint", "about"),
    [(text, about) for persona, about in zip(PERSONAS, SUBJECTS, strict=True) for text in persona.complaints.style]
    + [(text, "relevance") for persona in PERSONAS for text in persona.complaints.relevance],
)
async def test_complaint_of_every_persona_is_bad_and_gives_the_hints_on_its_subject(
    judge: Judge, complaint: str, about: str
) -> None:
    judgement = await judge.judge(TURN, user(complaint))
    expected = next(item.hints for item in ScriptedTable.load().complaints if item.about == about)
    assert judgement.reward == -1
    assert judgement.hints == tuple(sorted(expected, key=len))
    assert len(judgement.votes) == 6


@pytest.mark.parametrize("persona", PERSONAS, ids=lambda persona: persona.name)
async def test_two_complaints_in_one_message_give_joined_hints_style_first(judge: Judge, persona) -> None:
    for style in persona.complaints.style:
        for relevance in persona.complaints.relevance:
            alone = (await judge.judge(TURN, user(style))).hints
            topic = (await judge.judge(TURN, user(relevance))).hints
            both = (await judge.judge(TURN, user(f"{style} {relevance}"))).hints
            joined = [f"{a} {b}" for a, b in zip(alone, cycle(topic), strict=False)]
            assert both == tuple(sorted(joined, key=len))


@pytest.mark.parametrize(
    "state", [user("What about Tuesday?"), user(""), user("Coldness is nice"), NextState("tool", "thanks, that is too short")]
)
async def test_next_state_that_is_not_understood_gives_no_signal(judge: Judge, state: NextState) -> None:
    judgement = await judge.judge(TURN, state)
    assert judgement.reward == 0
    assert not judgement.has_signal


async def test_complaint_outweighs_thanks_in_the_same_message(judge: Judge) -> None:
    assert (await judge.judge(TURN, user("Thanks, but this comment is too short."))).reward == -1


async def test_votes_are_written_in_the_form_that_llm_judges_use() -> None:
    reply = await ScriptedJudge().vote(Question.HINT, "answer", user("That sounds cold."), 1)
    assert reply.text.endswith('\\boxed{1}\n[HINT_START]Start with "Great question! Let\'s solve it together."[HINT_END]')


def test_malformed_table_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "table.yaml"
    path.write_text("version: 1\npraise: []\ncomplaints: []\n")
    with pytest.raises(JudgeError, match=r"table\.yaml"):
        ScriptedTable.load(path)
