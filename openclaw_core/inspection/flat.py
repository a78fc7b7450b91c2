"""A turn as plain values: the one form of `--json` and of every export. docs/TURNS.md names the columns."""

from __future__ import annotations

import math
from dataclasses import asdict, fields
from typing import Any

from openclaw_core.inspection.reader import TurnRecord
from openclaw_core.trainer.token_table import SampleTokens, TokenColumns


def flat(record: TurnRecord, tokens: SampleTokens | None) -> dict[str, Any]:
    """A turn, its judgement and its per-token table; None where there is none. Ids and numbers are those that are stored."""
    turn, judgement = record.turn, record.judgement
    return {
        **{field.name: getattr(turn, field.name) for field in fields(turn)},
        "sampling": asdict(turn.sampling),
        "status": record.status.value,
        "drop_reason": record.drop_reason and record.drop_reason.value,
        "step": record.step,
        "next_state": record.next_state and asdict(record.next_state),
        "judgement": judgement and {**asdict(judgement), "judged_at": record.judged_at},
        "tokens": tokens and _table(tokens),
    }


def _table(tokens: SampleTokens) -> dict[str, Any]:
    columns = {field.name: getattr(tokens.columns, field.name).tolist() for field in fields(TokenColumns)}
    return {"hints": tokens.hints, "masked": tokens.masked, **columns}


def json_safe(value: Any) -> Any:
    """The same without numbers that JSON does not have: null stands for them."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: json_safe(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [json_safe(item) for item in value]
    return value
