"""Two answers of a step to read, one that the judge liked and one that it did not, with what was said about them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypedDict

from openclaw_core.inspection.reader import LedgerReader, TurnFilter, TurnRecord
from openclaw_core.inspection.text import printable, shortened
from openclaw_core.types import Vote

TEXT, HINT, RAW = 1200, 400, 240
"""Characters of a message, an answer or a next state; of a hint; of what a judge wrote. Whole texts: `openclaw-rl turns`."""
HINTS, VOTES = 4, 12


class ShownVote(TypedDict):
    """What one judge said."""

    question: str
    value: int | None
    raw: str


class ShownSample(TypedDict):
    """A judged turn, shortened: some 20 kB at most."""

    turn_id: str
    asked: str
    """The last message of the prompt."""
    answer: str
    next_state: str | None
    reward: int
    hints: list[str]
    votes: list[ShownVote]
    truncated: bool


class StepSamples(TypedDict):
    """None where no turn of the step was found good, or bad."""

    step: int
    good: ShownSample | None
    bad: ShownSample | None


def step_samples(reader: LedgerReader, step: int) -> StepSamples | None:
    """The samples of a step whose batch has closed; None where there is none."""
    record = reader.step(step)
    if record is None:
        return None
    batch = set(record.turn_ids)
    turns = [turn for turn in reader.turns(TurnFilter(step=step), newest_first=False) if turn.turn.turn_id in batch]
    good, bad = _best(turns, 1), _best(turns, -1)
    return {"step": step, "good": good and _shown(good), "bad": bad and _shown(bad)}


def _best(turns: Sequence[TurnRecord], reward: int) -> TurnRecord | None:
    """The first with that verdict that ended by itself; a bad one rather with hints, which say what was wrong."""

    def preference(turn: TurnRecord) -> tuple[bool, bool]:
        assert turn.judgement is not None
        return bool(turn.judgement.hints) == (reward < 0), turn.turn.finish_reason != "length"

    found = [turn for turn in turns if turn.judgement is not None and turn.judgement.reward == reward]
    return max(found, key=preference, default=None)


def _shown(record: TurnRecord) -> ShownSample:
    turn, judgement = record.turn, record.judgement
    assert judgement is not None
    return {
        "turn_id": turn.turn_id,
        "asked": _short(_text(turn.messages[-1].get("content")) if turn.messages else "", TEXT),
        "answer": _short(turn.answer or ", ".join(_call(call) for call in turn.tool_calls), TEXT),
        "next_state": None if record.next_state is None else _short(record.next_state.text, TEXT),
        "reward": judgement.reward,
        "hints": [_short(hint, HINT) for hint in judgement.hints[:HINTS]],
        "votes": [_vote(vote) for vote in judgement.votes[:VOTES]],
        "truncated": turn.finish_reason == "length",
    }


def _vote(vote: Vote) -> ShownVote:
    return {"question": vote.question.value, "value": vote.value, "raw": _short(vote.raw, RAW)}


def _text(content: Any) -> str:
    """Of a message: a string, or parts of which some are text."""
    if isinstance(content, list):
        return "\n".join(str(part.get("text", f"({part.get('type', 'part')})")) for part in content if isinstance(part, dict))
    return content if isinstance(content, str) else ""


def _call(call: dict[str, Any]) -> str:
    function = call.get("function", {})
    return f"calls {function.get('name', '?')} {function.get('arguments', '')}"


def _short(text: str, limit: int) -> str:
    return shortened(printable(text, lines=True), limit)
