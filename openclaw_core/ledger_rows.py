"""What the ledger holds, as nouns, and how each becomes a row and comes back.

Whoever reads a ledger with a connection of its own (``sqlite3`` with ``row_factory = sqlite3.Row``) uses these too.
"""

from __future__ import annotations

import json
import sqlite3
import time
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from typing import Any

from openclaw_core.errors import OpenClawError
from openclaw_core.types import FinishReason, Judgement, NextState, Question, Sampling, Turn, Vote

JUDGED_TURNS = (
    "SELECT t.*, j.reward, j.hints, j.votes, j.model, j.prompt_version, j.refused, j.policy, j.judged_at "
    "FROM turns t JOIN judgements j USING (turn_id)"
)
"""Rows for ``judged_of``."""


class LedgerError(OpenClawError):
    """The ledger was asked for something that contradicts what it holds, or its file cannot be read by this version."""


class TurnStatus(StrEnum):
    """Where a turn stands."""

    WAITING = "waiting"
    """Captured; nobody has reacted to it yet."""
    JUDGING = "judging"
    """The next state is known; the judge's votes are not."""
    READY = "ready"
    """Judged, with a signal; free for a batch."""
    NO_SIGNAL = "no_signal"
    """Judged neither good nor bad, and without a hint."""
    BATCHED = "batched"
    """In the batch of a step that is not trained yet."""
    TRAINED = "trained"
    SKIPPED = "skipped"
    """In a step whose update was skipped; not used again."""
    DROPPED = "dropped"
    """Not trained on, with a reason."""


class StepState(StrEnum):
    """How far a step has come; each state includes those before it."""

    COLLECTED = "collected"
    TRAINED = "trained"
    """Or skipped: ``StepRecord.skipped``."""
    PUBLISHED = "published"
    REPORTED = "reported"


@dataclass(frozen=True, slots=True)
class JudgedTurn:
    """A turn with its verdict."""

    turn: Turn
    judgement: Judgement


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One step as it is on disk. ``version`` is that of the weights after it; None until trained."""

    step: int
    state: StepState
    turn_ids: tuple[str, ...]
    version: int | None
    skipped: bool
    """By the guard against non-finite gradients: the version is that of the step before."""
    metrics: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a persona found an answer, as the feeder tells it. ``problem``: the problem's number in the feeder's stream.

    ``ground_truth``: the problem's known answer, so that hints that quote it are refused; None where there is none.
    """

    session_id: str
    persona: str
    first: bool
    satisfied: bool
    relevant: bool
    problem: int
    ground_truth: str | None = None


def turn_json(turn: Turn) -> str:
    """A turn's ``body``. Not by ``asdict`` as a whole: it would copy every id, and this is on the way of every answer."""
    return json.dumps({f.name: getattr(turn, f.name) for f in fields(turn)} | {"sampling": asdict(turn.sampling)})


def turn_of(row: sqlite3.Row) -> Turn:
    """The turn in a row that has ``body``."""
    body = json.loads(row["body"])
    sampling = body.pop("sampling")
    return Turn(
        **{
            **body,
            "messages": tuple(body["messages"]),
            "prompt_ids": tuple(body["prompt_ids"]),
            "response_ids": tuple(body["response_ids"]),
            "rollout_logprobs": tuple(body["rollout_logprobs"]),
            "version_spans": tuple((version, count) for version, count in body["version_spans"]),
            "tool_calls": tuple(body["tool_calls"]),
            "finish_reason": FinishReason(body["finish_reason"]),
        },
        sampling=Sampling(**{**sampling, "stop": tuple(sampling["stop"])}),
    )


def next_state_of(row: sqlite3.Row) -> NextState | None:
    """What came after the turn of a row of ``turns``; None: nothing yet, or nothing ever."""
    return None if row["next_role"] is None else NextState(row["next_role"], row["next_text"])


def judgement_values(judgement: Judgement) -> dict[str, Any]:
    """A judgement as columns of ``judgements``."""
    return {
        "turn_id": judgement.turn_id,
        "reward": judgement.reward,
        "hints": json.dumps(judgement.hints),
        "votes": json.dumps([asdict(vote) for vote in judgement.votes]),
        "model": judgement.model,
        "prompt_version": judgement.prompt_version,
        "refused": json.dumps(judgement.refused),
        "policy": judgement.policy,
        "judged_at": time.time(),
    }


def judgement_of(row: sqlite3.Row) -> Judgement:
    """The judgement in a row of ``judgements``, or of JUDGED_TURNS."""
    return Judgement(
        turn_id=row["turn_id"],
        reward=row["reward"],
        hints=tuple(json.loads(row["hints"])),
        votes=tuple(Vote(**{**vote, "question": Question(vote["question"])}) for vote in json.loads(row["votes"])),
        model=row["model"],
        prompt_version=row["prompt_version"],
        refused=tuple((text, reason) for text, reason in json.loads(row["refused"])),
        policy=row["policy"],
    )


def judged_of(row: sqlite3.Row) -> JudgedTurn:
    """The judged turn in a row of JUDGED_TURNS."""
    return JudgedTurn(turn_of(row), judgement_of(row))


def step_of(row: sqlite3.Row) -> StepRecord:
    """The step in a row of ``steps``."""
    return StepRecord(
        row["step"],
        StepState(row["state"]),
        tuple(json.loads(row["turn_ids"])),
        row["version"],
        bool(row["skipped"]),
        json.loads(row["metrics"]),
    )


def outcome_of(row: sqlite3.Row) -> Outcome:
    """The outcome in a row of ``outcomes``."""
    return Outcome(
        row["session_id"],
        row["persona"],
        bool(row["first"]),
        bool(row["satisfied"]),
        bool(row["relevant"]),
        row["problem"],
        row["ground_truth"],
    )
