"""The files of per-token tables: ``runs/<id>/tables/step-NNNNNN.npz``, of the newest steps, each whole or absent.

An npz file holds the columns of all its samples one after another ([T, K] ones of the distilled samples only) and ``about``,
JSON that says which rows are whose. No pickle: a table may be read wherever it comes from.
"""

from __future__ import annotations

import json
import os
import re
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np

from openclaw_core.errors import OpenClawError
from openclaw_core.trainer.token_table import OF_ROW, OF_SUPPORT, SampleTokens, TokenColumns

FORMAT = 1
MAX_BYTES = 64 * 2**20
"""Of one step: 16 answers of 8,192 tokens with K = 4 take 26 MB."""
_NAME = re.compile(r"step-(\d{6,})\.npz")


class TokenTableError(OpenClawError):
    """A table's file cannot be read; the message names it."""


@dataclass(frozen=True, slots=True)
class StepTable:
    """The samples of one step, in the batch's order. ``left_out``: those that did not fit into MAX_BYTES."""

    step: int
    samples: tuple[SampleTokens, ...]
    left_out: tuple[str, ...] = ()

    def of(self, sample_id: str) -> SampleTokens | None:
        """The rows of one sample, or None if there are none."""
        return next((sample for sample in self.samples if sample.sample_id == sample_id), None)


class TokenTables:
    """The tables of one run. ``keep``: how many steps, the newest, the directory holds; 0: nothing is ever written."""

    def __init__(self, directory: Path, keep: int = 0) -> None:
        self._directory, self._keep = directory, keep

    def steps(self) -> list[int]:
        """The steps that have a table, in order."""
        found = [_NAME.fullmatch(file.name) for file in self._directory.glob("step-*.npz")]
        return sorted(int(match[1]) for match in found if match)

    def write(self, step: int, samples: Sequence[SampleTokens]) -> None:
        """Put a step's table there, in place of one that is there, and remove those that are too old. Raises OSError.

        A replayed step that is older than those kept writes nothing.
        """
        newer = [other for other in self.steps() if other > step]
        if len(newer) >= self._keep:
            return
        table = _bounded(step, samples)
        self._directory.mkdir(parents=True, exist_ok=True)
        temporary = self._directory / ".writing.npz"
        try:
            with temporary.open("wb") as file:
                cast(Any, np.savez)(file, **_arrays(table))
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(self._file(step))
        finally:
            temporary.unlink(missing_ok=True)
        for old in self.steps()[: -self._keep]:
            self._file(old).unlink()

    def read(self, step: int) -> StepTable | None:
        """The table of a step, or None if there is none. Raises TokenTableError for a file that is no such table."""
        file = self._file(step)
        try:
            with np.load(file, allow_pickle=False) as arrays:
                about = json.loads(str(arrays["about"]))
                if about["format"] != FORMAT:
                    raise TokenTableError(f"{file} has format {about['format']}; this version reads format {FORMAT}")
                columns = {name: arrays[name] for name in (*OF_ROW, *OF_SUPPORT)}
        except FileNotFoundError:
            return None
        except (OSError, zipfile.BadZipFile, KeyError, ValueError, EOFError) as error:
            raise TokenTableError(f"{file} is no table of tokens ({error}); remove it") from error
        return StepTable(step, tuple(_samples(about["samples"], columns)), tuple(about["left_out"]))

    def _file(self, step: int) -> Path:
        return self._directory / f"step-{step:06d}.npz"


def _bounded(step: int, samples: Sequence[SampleTokens]) -> StepTable:
    """Whole samples, in order, as long as there is room."""
    kept: list[SampleTokens] = []
    room = MAX_BYTES
    for sample in samples:
        if sample.nbytes <= room:
            kept.append(sample)
            room -= sample.nbytes
    names = {sample.sample_id for sample in kept}
    return StepTable(step, tuple(kept), tuple(sample.sample_id for sample in samples if sample.sample_id not in names))


def _arrays(table: StepTable) -> dict[str, np.ndarray]:
    samples = [
        {
            "sample_id": sample.sample_id,
            "hints": sample.hints,
            "masked": sample.masked,
            "rows": len(sample.columns.token),
            "distilled": sample.columns.ids.shape[1] > 0,
        }
        for sample in table.samples
    ]
    about = {"format": FORMAT, "samples": samples, "left_out": table.left_out}
    arrays = {"about": np.array(json.dumps(about))}
    distilled = [sample for sample in table.samples if sample.columns.ids.shape[1]]
    for names, of in ((OF_ROW, table.samples), (OF_SUPPORT, distilled or table.samples)):
        for name in names:
            parts = [getattr(sample.columns, name) for sample in of]
            arrays[name] = np.concatenate(parts) if parts else np.zeros((0, 0))
    return arrays


def _samples(about: Sequence[Mapping[str, Any]], columns: Mapping[str, np.ndarray]) -> list[SampleTokens]:
    samples: list[SampleTokens] = []
    row = pair = 0
    for entry in about:
        own = slice(row, row := row + entry["rows"])
        pairs = slice(pair, pair := pair + entry["rows"] * entry["distilled"])
        found = {name: columns[name][own] for name in OF_ROW}
        for name in OF_SUPPORT:
            found[name] = columns[name][pairs] if entry["distilled"] else np.zeros((entry["rows"], 0), columns[name].dtype)
        samples.append(SampleTokens(entry["sample_id"], tuple(entry["hints"]), entry["masked"], TokenColumns(**found)))
    return samples
