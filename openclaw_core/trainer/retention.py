"""Which checkpoints exist: their names, their marker, the latest one, and which are kept. Free of torch and megatron.

A checkpoint is a directory with ``meta.json``, written last. Without it the directory is no checkpoint.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from openclaw_core.errors import OpenClawError
from openclaw_core.weights.files import read_json, remove
from openclaw_core.weights.spec import Dtype

META = "meta.json"
_STEP = re.compile(r"step_(\d+)")
_PARTIAL = re.compile(r"\.step_\d+\.partial")


class CheckpointError(OpenClawError):
    """A checkpoint that cannot be written or does not fit; the message names its path and what does not fit."""


@dataclass(frozen=True, slots=True)
class CheckpointInfo:
    """What the marker says about a checkpoint."""

    dtype: Dtype
    model: dict[str, Any]
    """The ModelSpec's fields."""
    training: bool
    """Holds random streams and, once a step was made, the optimiser; False: weights alone."""
    optimizer: bool
    meta: dict[str, Any]
    """What the writer noted: step, weight version and so on."""


def read_info(directory: Path) -> CheckpointInfo:
    """The marker of a checkpoint. Raises CheckpointError if there is no whole checkpoint."""
    record = read_json(directory / META)
    if record is None:
        raise CheckpointError(f"{directory} is no checkpoint: it has no {META}")
    return CheckpointInfo(**record)


def step_directory(root: Path, step: int) -> Path:
    """Where the checkpoint of ``step`` is kept below ``root``."""
    return root / f"step_{step:06d}"


def latest(root: Path) -> Path | None:
    """The whole checkpoint of the highest step; None where there is none."""
    return max(_whole(root), key=_step, default=None)


def prune(root: Path, keep_last: int) -> None:
    """Remove all but the last ``keep_last`` (>= 1) whole checkpoints, and what interrupted writers left."""
    if keep_last < 1:
        raise CheckpointError(f"keep_last={keep_last}: at least 1 checkpoint must be kept")
    for directory in sorted(_whole(root), key=_step)[:-keep_last]:
        # Without its marker it is no checkpoint: a removal that is interrupted leaves none that looks whole.
        (directory / META).unlink()
        remove(directory)
    for path in root.iterdir() if root.exists() else ():
        if _PARTIAL.fullmatch(path.name) or (_STEP.fullmatch(path.name) and not (path / META).exists()):
            remove(path)


def _whole(root: Path) -> list[Path]:
    if not root.exists():
        return []
    return [path for path in root.iterdir() if _STEP.fullmatch(path.name) and read_json(path / META) is not None]


def _step(directory: Path) -> int:
    return int(directory.name.removeprefix("step_"))
