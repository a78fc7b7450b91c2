"""Turns as JSON Lines or Parquet, written whole or not at all."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from openclaw_core.errors import OpenClawError
from openclaw_core.inspection.flat import json_safe

ROWS_AT_ONCE = 256
"""Of a Parquet file's row group, and in memory."""

Row = dict[str, Any]


class ExportError(OpenClawError):
    """Nothing was exported; the message says why."""


def export(rows: Iterable[Row], out: Path) -> int:
    """Write turns (``flat.flat``) to ``out``, a .jsonl or .parquet file that does not exist; returns how many.

    Raises ExportError.
    """
    writers: dict[str, Callable[[Iterable[Row], Path], int]] = {".jsonl": _write_jsonl, ".parquet": _write_parquet}
    if out.suffix not in writers:
        raise ExportError(f"{out}: the name must end with {' or '.join(writers)}, which says the format")
    if out.exists():
        raise ExportError(f"{out} exists; remove it, or choose another name")
    temporary = out.with_name(f".{out.name}.tmp")
    try:
        count = writers[out.suffix](rows, temporary)
        temporary.replace(out)
    except OSError as error:
        raise ExportError(f"{out} cannot be written: {error.strerror or error}") from error
    finally:
        temporary.unlink(missing_ok=True)
    return count


def _write_jsonl(rows: Iterable[Row], file: Path) -> int:
    count = 0
    with file.open("w", encoding="utf-8") as stream:
        for row in rows:
            # As ASCII: text of unknown origin may hold lone surrogates, which UTF-8 has not.
            stream.write(json.dumps(json_safe(row), allow_nan=False) + "\n")
            count += 1
    return count


def _write_parquet(rows: Iterable[Row], file: Path) -> int:
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError:
        raise ExportError("a .parquet file needs the package pyarrow; install openclaw-rl[data], or export to .jsonl") from None

    schema = _schema(pa)
    count = 0
    with parquet.ParquetWriter(file, schema, compression="zstd") as writer:
        for group in _groups(rows):
            writer.write_table(pa.Table.from_pylist([_parquet_row(row) for row in group], schema))
            count += len(group)
    return count


def _groups(rows: Iterable[Row]) -> Iterator[list[Row]]:
    iterator = iter(rows)
    while group := list(islice(iterator, ROWS_AT_ONCE)):
        yield group


def _parquet_row(row: Row) -> Row:
    """Messages and tool calls have no fixed form: they are JSON, as in the JSON Lines."""
    loose = {name: json.dumps(json_safe(row[name])) for name in ("messages", "tool_calls")}
    spans = [{"version": version, "tokens": tokens} for version, tokens in row["version_spans"]]
    judgement = row["judgement"]
    if judgement is not None:
        refused = [{"hint": hint, "reason": reason} for hint, reason in judgement["refused"]]
        judgement = {**judgement, "refused": refused}
    return _utf8({**row, **loose, "version_spans": spans, "judgement": judgement})


def _utf8(value: Any) -> Any:
    """The same with lone surrogates, which UTF-8 has not, as \\udXXX."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {key: _utf8(item) for key, item in value.items()}
    if isinstance(value, list | tuple) and value and not isinstance(value[0], int | float):
        return [_utf8(item) for item in value]
    return value


def _schema(pa: Any) -> Any:
    text, whole, number, flag = pa.string(), pa.int64(), pa.float64(), pa.bool_()

    def many(kind: Any) -> Any:
        return pa.list_(kind)

    def record(**columns: Any) -> Any:
        return pa.struct(list(columns.items()))

    vote = record(question=text, value=whole, hint=text, raw=text, seconds=number, prompt_tokens=whole, completion_tokens=whole)
    judgement = record(
        turn_id=text,
        reward=whole,
        hints=many(text),
        votes=many(vote),
        model=text,
        prompt_version=text,
        refused=many(record(hint=text, reason=text)),
        policy=text,
        judged_at=number,
    )
    sampling = record(
        temperature=number,
        max_new_tokens=whole,
        top_p=number,
        top_k=whole,
        min_p=number,
        repetition_penalty=number,
        frequency_penalty=number,
        presence_penalty=number,
        seed=whole,
        stop=many(text),
    )
    of_row = {"token": pa.int32(), "trained": flag, "rewarded": flag, "hint": pa.int32(), "overlap": pa.int32()}
    of_row |= {name: pa.float32() for name in ("rollout_logp", "old_logp", "importance", "advantage")}
    of_support = {"ids": pa.int32(), "support": flag}
    of_support |= {name: pa.float32() for name in ("student_logp", "teacher_logp", "teacher_old_logp")}
    of_support |= {name: pa.float32() for name in ("delta", "weight", "token_advantage")}
    tokens = record(
        hints=many(text),
        masked=text,
        **{name: many(kind) for name, kind in of_row.items()},
        **{name: many(many(kind)) for name, kind in of_support.items()},
    )
    columns = {
        "turn_id": text,
        "session_id": text,
        "index": whole,
        "messages": text,
        "answer": text,
        "prompt_ids": many(whole),
        "response_ids": many(whole),
        "rollout_logprobs": many(number),
        "sampling": sampling,
        "weight_version": whole,
        "version_spans": many(record(version=whole, tokens=whole)),
        "finish_reason": text,
        "hint_offset": whole,
        "created_at": number,
        "generate_s": number,
        "tool_calls": text,
        "user": text,
        "status": text,
        "drop_reason": text,
        "step": whole,
        "next_state": record(role=text, text=text),
        "judgement": judgement,
        "tokens": tokens,
    }
    return pa.schema(list(columns.items()))
