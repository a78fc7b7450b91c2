"""A run with a ledger and a table of tokens, for tests of what shows them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from openclaw_core.config import load_config
from openclaw_core.inspection.tables import TokenTables
from openclaw_core.ledger import Ledger, Outcome
from openclaw_core.rundir import RunDir, create_run
from openclaw_core.trainer.token_table import SampleTokens, TokenColumns
from openclaw_core.types import DropReason, FinishReason, Judgement, NextState, Question, Sampling, Vote
from tests.unit.test_ledger import make_turn

HINTS = ("Write plain sentences.", "Say how each number of the question is used.")


def small_run(directory: Path, extra: Mapping[str, Any] | None = None) -> RunDir:
    """Five turns: trained with a hint, dropped, masked, not judged, and a call of a tool from a terminal's nightmare."""
    settings = {"paths.runs": str(directory / "runs"), "paths.models": str(directory / "models"), "model.name": "tiny"}
    run = create_run(load_config("local-cpu", {**settings, **(extra or {})}), "r")
    ledger = Ledger(run.ledger_file)
    ledger.add_turn(
        make_turn(
            "aaaa1111-trained",
            session_id="student-17",
            messages=(
                {"role": "system", "content": "You are a helpful assistant."},
                {"role": "user", "content": "A robe takes 2 bolts of blue fiber and half that of white. How many bolts?"},
            ),
            answer="**Answer:**\n- 3 bolts",
            response_ids=(40, 41, 42),
            rollout_logprobs=(-0.25, -1.5, -0.125),
            finish_reason=FinishReason.LENGTH,
            version_spans=((0, 2), (1, 1)),
            sampling=Sampling(temperature=0.7, max_new_tokens=3, repetition_penalty=1.1),
            created_at=1_760_000_000.0,
        )
    )
    ledger.set_next_state("aaaa1111-trained", NextState("user", "Please, no lists and no bold. 谢谢"))
    votes = (
        Vote(Question.REWARD, -1, None, "The user asks for another form.\n\\boxed{-1}", 0.5, 120, 12),
        Vote(Question.REWARD, None, None, "timed out after 60 s"),
        Vote(Question.HINT, 1, HINTS[0], f"\\boxed{{1}} [HINT_START]{HINTS[0]}[HINT_END]", 0.75, 130, 20),
    )
    refused = (("It is 3.", "quotes_answer"),)
    ledger.add_judgement(Judgement("aaaa1111-trained", -1, HINTS, votes, "judge-8b", "reward 1, hint 1", refused))
    ledger.add_outcome(Outcome("student-17", "student", True, False, True, 4), 1)

    ledger.add_turn(make_turn("aaaa2222-masked", session_id="ta-3", weight_version=1, answer="Good work."))
    ledger.set_next_state("aaaa2222-masked", NextState("user", "More words, please."))
    ledger.add_judgement(Judgement("aaaa2222-masked", 1, (), (Vote(Question.REWARD, 1, None, "\\boxed{1}"),)))
    ledger.open_step(1, ["aaaa1111-trained", "aaaa2222-masked"])
    ledger.record_training(1, 1, skipped=False, metrics={})

    ledger.add_turn(make_turn("bbbb-dropped", session_id="ta-3", index=1, weight_version=2, answer="Too late."))
    ledger.set_next_state("bbbb-dropped", DropReason.SESSION_IDLE)
    ledger.add_turn(make_turn("cccc-waiting", session_id="teacher-9", weight_version=2, answer="Well done!"))
    call = {"id": "c1", "type": "function", "function": {"name": "read", "arguments": '{"path": "\\u001b[31m"}'}}
    ledger.add_turn(
        make_turn(
            "dddd-tool",
            session_id="x\x1b[2Jy",
            answer="\x1b]0;owned\x07 \u202egnp\x9b31m \ud800",
            tool_calls=(call,),
            finish_reason=FinishReason.TOOL_CALLS,
            weight_version=3,
        )
    )
    ledger.close()
    TokenTables(run.tables, keep=2).write(1, [distilled("aaaa1111-trained"), reward_only("aaaa2222-masked")])
    return run


def distilled(sample_id: str) -> SampleTokens:
    """Three tokens with K = 2, the last of them masked."""
    f = np.float32
    old = np.log(np.array([[0.6, 0.3], [0.5, 0.25], [0.9, 0.05]], f))
    teacher = np.log(np.array([[0.2, 0.6], [0.5, 0.2], [0.9, 0.05]], f))
    counts = np.array([[1], [1], [0]], f)
    delta = (teacher - old).clip(-1, 1) * counts
    weight = np.exp(old) / np.exp(old).sum(1, keepdims=True) * counts
    columns = TokenColumns(
        token=np.array([40, 41, 42], np.int32),
        rollout_logp=np.array([-0.25, -1.5, -0.125], f),
        old_logp=np.array([-0.5, -1.25, -0.125], f),
        importance=np.array([0.75, 1.25, 1], f),
        advantage=np.full(3, -1, f),
        trained=np.array([True, True, False]),
        rewarded=np.array([True, True, False]),
        hint=np.array([1, 1, 1], np.int32),
        overlap=np.array([2, 1, 2], np.int32),
        ids=np.array([[40, 50], [41, 51], [42, 52]], np.int32),
        support=np.array([[True, True], [True, False], [True, True]]),
        student_logp=old,
        teacher_logp=teacher,
        teacher_old_logp=old,
        delta=delta,
        weight=weight,
        token_advantage=weight * delta,
    )
    return SampleTokens(sample_id, HINTS, None, columns)


def reward_only(sample_id: str) -> SampleTokens:
    """Two tokens of a sample without a hint, masked; a log-prob is not finite."""
    f, empty = np.float32, np.zeros((2, 0), np.float32)
    columns = TokenColumns(
        token=np.array([4, 5], np.int32),
        rollout_logp=np.array([-0.1, -0.3], f),
        old_logp=np.array([np.nan, -9], f),
        importance=np.ones(2, f),
        advantage=np.ones(2, f),
        trained=np.zeros(2, bool),
        rewarded=np.zeros(2, bool),
        hint=np.zeros(2, np.int32),
        overlap=np.zeros(2, np.int32),
        ids=empty.astype(np.int32),
        support=empty.astype(bool),
        **dict.fromkeys(("student_logp", "teacher_logp", "teacher_old_logp", "delta", "weight", "token_advantage"), empty),
    )
    return SampleTokens(sample_id, (), "logprob_mismatch", columns)
