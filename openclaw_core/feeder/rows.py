"""Problems in files: JSON, JSONL and Parquet, in the form of GSM8K or with the bare result."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from openclaw_core.feeder.errors import ProblemError

Candidate = tuple[str, str]
"""Question and answer."""

FORMS = '{"question": "...", "answer": "... #### 42"} or {"question": "...", "ground_truth_answer": "42"}'
SUFFIXES = (".json", ".jsonl", ".parquet")


def read_problems(path: Path) -> list[Candidate]:
    """The problems of a file; the answer is the result alone.

    Raises:
        ProblemError: no such file, another kind of file, or a row that is no problem; the message says which.
    """
    readers = {".json": _json_rows, ".jsonl": _jsonl_rows, ".parquet": _parquet_rows}
    if path.suffix not in readers:
        raise ProblemError(f"problem file {path} is of no known kind; it must end in {', '.join(SUFFIXES)}")
    try:
        rows = [_problem(row, f"{path}, {where}") for where, row in readers[path.suffix](path)]
    except OSError as error:
        raise ProblemError(f"problem file {path} cannot be read: {error}") from error
    if not rows:
        raise ProblemError(f"problem file {path} holds no problems")
    return rows


def _jsonl_rows(path: Path) -> Iterator[tuple[str, Any]]:
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if line.strip():
            yield f"line {number}", _parsed(line, f"{path}, line {number}")


def _json_rows(path: Path) -> Iterator[tuple[str, Any]]:
    rows = _parsed(path.read_text(encoding="utf-8"), str(path))
    if not isinstance(rows, list):
        raise ProblemError(f"{path} is no list; it must be a list of {FORMS}")
    yield from ((f"item {number}", row) for number, row in enumerate(rows, 1))


def _parquet_rows(path: Path) -> Iterator[tuple[str, Any]]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise ProblemError(f"reading {path} needs the package pyarrow; install the extra 'data'") from error
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            known = {"question", "answer", "ground_truth_answer"}.intersection(file.schema_arrow.names)
            rows = file.read(columns=sorted(known)).to_pylist()
    except pyarrow.ArrowInvalid as error:
        raise ProblemError(f"problem file {path} is no whole Parquet file: {error}") from error
    yield from ((f"row {number}", row) for number, row in enumerate(rows, 1))


def _parsed(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise ProblemError(f"{where}: not JSON: {error}") from error


def _problem(row: Any, where: str) -> Candidate:
    try:
        question = row["question"].strip()
        result = row.get("ground_truth_answer")
        if result is None:
            result = row["answer"].rpartition("####")[2]
        return question, str(result).strip().replace(",", "")
    except (KeyError, TypeError, AttributeError) as error:
        raise ProblemError(f"{where}: not of the form {FORMS}") from error
