"""Judges for tests: one that fails as it is told and then answers as the scripted judge does, and something to judge."""

from __future__ import annotations

import asyncio

from openclaw_core.judge import Judge, JudgeClient, JudgeError, JudgeOverflow, JudgeRefused, JudgeReply, ScriptedJudge
from openclaw_core.judge.client import JudgeDenied
from openclaw_core.judge.scripted import Complaint, ScriptedTable
from openclaw_core.types import FinishReason, NextState, Question, Sampling, Turn

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


TABLE = ScriptedTable(
    version=1,
    praise=("thank you", "thanks"),
    complaints=(
        Complaint(
            about="tone",
            phrases=("cold",),
            hints=(
                "Start with Great question, friend.",
                "Be kind to your friend in every step.",
                "Start with Great question, and stay kind to your friend.",
            ),
        ),
    ),
)
"""Hints of a known wording: two say "great question", all say "friend"."""

COMPLAINT, THANKS, WEATHER = (NextState("user", text) for text in ("That sounds cold.", "Thank you!", "It rains."))


class FlakyClient:
    """Fails, hangs or talks nonsense as told, per question and vote; then answers as the scripted judge does."""

    model, prompt_version = "flaky", "flaky 1"

    def __init__(self, faults: dict[tuple[Question, int], list[str]] | None = None) -> None:
        self.faults = faults or {}
        self.always: dict[Question, str] = {}
        """What happens to every vote on a question."""
        self.calls: list[tuple[Question, int]] = []
        self.busy = self.most_busy = 0
        self.gate = asyncio.Event()
        self.gate.set()
        self.closed = False
        self._scripted = ScriptedJudge(TABLE)

    async def vote(self, question: Question, answer: str, next_state: NextState, vote_index: int) -> JudgeReply:
        self.calls.append((question, vote_index))
        self.busy += 1
        self.most_busy = max(self.busy, self.most_busy)
        try:
            await self.gate.wait()
            await asyncio.sleep(0)
            faults = self.faults.get((question, vote_index), [])
            return await self._vote(
                faults.pop(0) if faults else self.always.get(question), question, answer, next_state, vote_index
            )
        finally:
            self.busy -= 1

    async def _vote(
        self, fault: str | None, question: Question, answer: str, next_state: NextState, vote_index: int
    ) -> JudgeReply:
        match fault:
            case "error":
                raise JudgeError("connection refused")
            case "later":
                raise JudgeError("429: too many", retry_after_s=0.05)
            case "much later":
                raise JudgeError("429: quota", retry_after_s=3600)
            case "refused":
                raise JudgeRefused("400: no such model")
            case "denied":
                raise JudgeDenied("401: set OPENCLAW_JUDGE_API_KEY")
            case "too long":
                raise JudgeOverflow("too long")
            case "hang":
                await asyncio.sleep(3600)
            case "nonsense":
                return JudgeReply("I would rather not say.")
            case "cut":
                return JudgeReply("Maybe \\boxed{1}, but then", truncated=True, prompt_tokens=7, completion_tokens=5)
        reply = await self._scripted.vote(question, answer, next_state, vote_index)
        return JudgeReply(reply.text, prompt_tokens=10, completion_tokens=3)

    async def close(self) -> None:
        self.closed = True


def judge_of(client: JudgeClient, **options: int | float) -> Judge:
    """Three votes, no retries, and a deadline that a hanging call reaches soon."""
    settings = {"votes": 3, "min_hint_chars": 11, "max_candidates": 3, "deadline_s": 0.2, "retries": 0} | options
    return Judge(client, **settings)  # type: ignore[arg-type]
