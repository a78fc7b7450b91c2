from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from openclaw_core.config import load_config
from openclaw_core.feeder import load_personas
from openclaw_core.judge import JudgeError, JudgeUnavailable, ScriptedJudge, build_judge
from openclaw_core.judge.judge import Judge
from openclaw_core.judge.scripted import ScriptedTable
from openclaw_core.types import FinishReason, NextState, Question, Sampling, Turn

PERSONAS = load_personas("local", ["student", "ta", "teacher"])
SUBJECTS = ["formatting", "length", "tone"]
TURN = Turn(
    turn_id="turn-1",
    session_id="session-1",
    index=0,
    messages=({"role": "user", "content": "How many?"},),
    answer="It is **7**.",
    prompt_ids=(1, 2),
    response_ids=(3,),
    rollout_logprobs=(-0.5,),
    sampling=Sampling(temperature=0.7, max_new_tokens=8),
    weight_version=0,
    version_spans=((0, 1),),
    finish_reason=FinishReason.STOP,
    hint_offset=1,
    created_at=0.0,
    generate_s=0.1,
)


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
async def test_complaint_of_every_persona_is_bad_and_gives_three_hints_on_its_subject(
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
            assert both == tuple(f"{a} {b}" for a, b in zip(alone, topic, strict=True))


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
    raw = await ScriptedJudge().vote(Question.HINT, "answer", user("That sounds cold."), 1)
    assert raw.endswith('\\boxed{1}\n[HINT_START]Start with "Great question! Let\'s solve it together."[HINT_END]')


def test_malformed_table_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "table.yaml"
    path.write_text("version: 1\npraise: []\ncomplaints: []\n")
    with pytest.raises(JudgeError, match=r"table\.yaml"):
        ScriptedTable.load(path)


def test_client_that_does_not_exist_yet_is_refused() -> None:
    with pytest.raises(JudgeError, match=r"judge\.client=openai"):
        build_judge(load_config("local-cpu", {"judge.client": "openai"}))


class FlakyClient:
    """Fails, hangs or talks nonsense as told, per question and vote; then answers as the scripted judge does."""

    def __init__(self, faults: dict[tuple[Question, int], list[str]]) -> None:
        self.faults = faults
        self.calls = 0
        self.scripted = ScriptedJudge()

    async def vote(self, question: Question, answer: str, next_state: NextState, vote_index: int) -> str:
        self.calls += 1
        faults = self.faults.get((question, vote_index), [])
        fault = faults.pop(0) if faults else None
        if fault == "error":
            raise JudgeError("connection refused")
        if fault == "hang":
            await asyncio.sleep(3600)
        if fault == "nonsense":
            return "I would rather not say."
        return await self.scripted.vote(question, answer, next_state, vote_index)


def with_client(client: FlakyClient, retries: int) -> Judge:
    return Judge(client, votes=3, min_hint_chars=11, max_candidates=3, deadline_s=0.2, retries=retries)


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("openclaw_core.judge.judge.FIRST_WAIT_S", 0.001)


@pytest.mark.parametrize("fault", ["error", "hang"])
async def test_vote_that_fails_is_asked_again(fault: str) -> None:
    client = FlakyClient({(Question.REWARD, 0): [fault], (Question.HINT, 2): [fault]})
    judgement = await with_client(client, retries=1).judge(TURN, user("That sounds cold."))
    assert client.calls == 8
    assert [vote.value for vote in judgement.votes] == [-1, -1, -1, 1, 1, 1]


@pytest.mark.parametrize("fault", ["error", "hang", "nonsense"])
async def test_one_lost_vote_leaves_a_verdict_and_is_recorded_as_no_vote(fault: str) -> None:
    client = FlakyClient({(Question.REWARD, 1): [fault]})
    judgement = await with_client(client, retries=0).judge(TURN, user("Thank you!"))
    assert judgement.reward == 1
    assert [vote.value for vote in judgement.votes[:3]] == [1, None, 1]


@pytest.mark.parametrize("question", list(Question))
@pytest.mark.parametrize("fault", ["error", "hang", "nonsense"])
async def test_too_few_votes_on_either_question_are_never_a_silent_zero(question: Question, fault: str) -> None:
    client = FlakyClient({(question, 0): [fault] * 9, (question, 1): [fault] * 9})
    with pytest.raises(JudgeUnavailable, match=f"turn-1: {question} question: 1 valid of 3"):
        await with_client(client, retries=1).judge(TURN, user("Thank you!"))


async def test_all_votes_of_a_turn_are_asked_at_once() -> None:
    everyone_is_here = asyncio.Barrier(6)

    class PatientClient(ScriptedJudge):
        async def vote(self, question: Question, answer: str, next_state: NextState, vote_index: int) -> str:
            await everyone_is_here.wait()
            return await super().vote(question, answer, next_state, vote_index)

    judge = Judge(PatientClient(), votes=3, min_hint_chars=11, max_candidates=3, deadline_s=5, retries=0)
    assert (await judge.judge(TURN, user("Thank you!"))).reward == 1
