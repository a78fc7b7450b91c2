from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from openclaw_core.judge import JudgeError
from openclaw_core.judge.parsing import parse_vote
from openclaw_core.judge.prompting import JudgePrompt, shown_answer
from openclaw_core.types import NextState, Question
from tests.judge_parts import TURN


@pytest.mark.parametrize("question", list(Question))
@pytest.mark.parametrize("role", ["user", "tool"])
def test_prompt_explains_both_roles_and_shows_answer_and_next_state(question: Question, role) -> None:
    system, user = JudgePrompt.load(question).messages("the {role} answer", NextState(role, "the {answer} reaction"))
    assert system["role"] == "system" and user["role"] == "user"
    assert "`user`" in system["content"] and "`tool`" in system["content"]
    assert "the {role} answer" in user["content"] and "the {answer} reaction" in user["content"]
    assert f"role: {role}" in user["content"]


@pytest.mark.parametrize("question", list(Question))
def test_every_verdict_that_a_prompt_names_can_be_parsed(question: Question) -> None:
    system = JudgePrompt.load(question).system
    verdicts = [value for value in ("1", "-1", "0") if f"\\boxed{{{value}}}" in system]
    assert verdicts == (["1", "-1", "0"] if question is Question.REWARD else ["1", "-1"])
    assert all(parse_vote(question, f"\\boxed{{{value}}}").value == int(value) for value in verdicts)


def test_a_judge_sees_the_calls_of_an_answer() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "read", "arguments": '{"path": "a.txt"}'}}
    assert shown_answer(replace(TURN, answer="Let me look.", tool_calls=(call, call))) == (
        'Let me look.\n[tool call] read {"path": "a.txt"}\n[tool call] read {"path": "a.txt"}'
    )
    assert shown_answer(replace(TURN, answer="", tool_calls=(call,))) == '[tool call] read {"path": "a.txt"}'
    assert shown_answer(TURN) == TURN.answer
    assert all("[tool call]" in JudgePrompt.load(question).system for question in Question)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("# System\na\n# User\n{answer} {role} {next_state}\n", "front matter"),
        ("---\nversion: 1\n---\n# System\na\n# User\n{answer} {role}\n", "slots"),
        (None, "cannot be read"),
    ],
)
def test_malformed_prompt_file_is_refused(tmp_path: Path, text: str | None, complaint: str) -> None:
    if text is not None:
        (tmp_path / "reward.md").write_text(text)
    with pytest.raises(JudgeError, match=complaint):
        JudgePrompt.load(Question.REWARD, tmp_path)
