"""Which checkpoints exist: their names, their manifest, the newest whole one, and which are kept. Free of torch and megatron.

A checkpoint is a directory with ``meta.json``, its manifest, which is written last, on the service's host. Without it the
directory is no checkpoint. The parts that it lists lie in directories of the same name on the hosts that wrote them.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from openclaw_core.trainer.parts import CheckpointError, Part
from openclaw_core.weights.files import fsync, publish, read_json, remove, write_json
from openclaw_core.weights.spec import Dtype

META = "meta.json"
_STEP = re.compile(r"step_(\d+)")
_PARTIAL = re.compile(r"\.step_\d+\.partial")

Verify = Callable[[str, Mapping[str, Part]], list[str]]
"""(name of a checkpoint's directory, its parts) → what is wrong with them, on whatever hosts; empty: nothing."""


@dataclass(frozen=True, slots=True)
class CheckpointInfo:
    """What the manifest says about a checkpoint."""

    dtype: Dtype
    model: dict[str, Any]
    """The ModelSpec's fields."""
    training: bool
    """Holds random streams and, once a step was made, the optimiser; False: weights alone."""
    optimizer: bool
    distributed_optimizer: bool
    """The optimiser's state is that of megatron's DistributedOptimizer, which has other names."""
    ranks: dict[str, int]
    """``tensor_parallel`` and ``data_parallel`` when it was written."""
    parts: dict[str, Part]
    """Its files by name. As answered by a rank's ``checkpoint.write``: those that this rank wrote."""
    meta: dict[str, Any]
    """What the writer noted: step, weight version and so on."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """A checkpoint whose parts are all in place, and the newer ones that are damaged, with what is wrong."""

    directory: Path
    info: CheckpointInfo
    damaged: dict[Path, list[str]]


def commit(directory: Path, written: Sequence[CheckpointInfo], meta: Mapping[str, Any] | None = None) -> CheckpointInfo:
    """Make what the ranks wrote a checkpoint: the manifest appears in one rename. Until then there is none.

    ``written`` is what ``checkpoint.write`` answered on every rank; ``meta`` is JSON.

    Raises:
        CheckpointError: it is committed already, an answer is missing, or the manifest cannot be written.
    """
    if not written or len(written) != written[0].ranks["tensor_parallel"] * written[0].ranks["data_parallel"]:
        raise CheckpointError(f"{directory}: {len(written)} ranks answered of {written[0].ranks if written else 'none'}")
    if (directory / META).exists():
        raise CheckpointError(f"{directory} exists; a checkpoint is never overwritten, remove it first")
    parts = {name: part for info in written for name, part in info.parts.items()}
    info = dataclasses.replace(written[0], parts=parts, meta=dict(meta or {}))
    unfinished = directory / f".{META}.partial"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        write_json(unfinished, asdict(info))
        fsync(directory.parent)
        publish(unfinished, directory / META)
    except OSError as error:
        remove(unfinished)
        raise CheckpointError(f"{directory / META} cannot be written: {error}") from error
    return info


def read_info(directory: Path) -> CheckpointInfo:
    """The manifest of a checkpoint. Raises CheckpointError if there is no whole one."""
    record = read_json(directory / META)
    if record is None:
        raise CheckpointError(f"{directory} is no checkpoint: it has no {META}")
    try:
        fields: dict[str, Any] = record | {"parts": {name: Part(**part) for name, part in record["parts"].items()}}
        return CheckpointInfo(**fields)
    except (KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(
            f"{directory / META} was written by another version: {error}; make the checkpoint again"
        ) from None


def step_directory(root: Path, step: int) -> Path:
    """Where the checkpoint of ``step`` is kept below ``root``."""
    return root / f"step_{step:06d}"


def latest(root: Path) -> Path | None:
    """The checkpoint of the highest step; None where there is none. Its parts are not looked at: see ``newest_whole``."""
    return max(_committed(root), key=_step, default=None)


def candidates(root: Path) -> list[Path]:
    """The directories that have a manifest, readable or not, newest first."""
    found = [path for path in _directories(root) if (path / META).exists()]
    return sorted(found, key=_step, reverse=True)


def newest_whole(root: Path, verify: Verify) -> Chosen | None:
    """The newest checkpoint below ``root`` with all its parts in place, passing over damaged ones; None: there are none.

    Raises:
        CheckpointError: there are checkpoints and each is damaged. Starting over is for a person to decide.
    """
    damaged: dict[Path, list[str]] = {}
    for directory in candidates(root):
        try:
            info = read_info(directory)
            findings = verify(directory.name, info.parts)
        except CheckpointError as error:
            findings = [str(error)]
        else:
            if not findings:
                return Chosen(directory, info, damaged)
        damaged[directory] = findings
    if damaged:
        lines = [f"{directory}: {'; '.join(findings)}" for directory, findings in damaged.items()]
        raise CheckpointError("\n".join([f"no checkpoint below {root} is whole; move them away to start over", *lines]))
    return None


def withdraw(directories: Iterable[Path]) -> None:
    """Make no checkpoints of these: training went on from an older one, and their steps will be made again.

    What is in them stays until the next ``prune``.
    """
    for directory in directories:
        (directory / META).replace(directory / f"{META}.withdrawn")
        fsync(directory)


def prune(root: Path, keep_last: int, keep_every: int = 0) -> list[str]:
    """Remove all checkpoints but the last ``keep_last`` (>= 1) and those of steps that ``keep_every`` divides (0: none).

    Also removes what interrupted writers left. Returns the names of the directories kept, for ``retain`` on other hosts.
    """
    if keep_last < 1:
        raise CheckpointError(f"keep_last={keep_last}: at least 1 checkpoint must be kept")
    committed = sorted(_committed(root), key=_step)
    kept = [path.name for i, path in enumerate(committed) if i >= len(committed) - keep_last or _milestone(path, keep_every)]
    retain(root, kept)
    return kept


def retain(root: Path, names: Iterable[str]) -> list[str]:
    """Remove the checkpoints below ``root`` that are not named, and what interrupted writers left; returns what went."""
    keep = set(names)
    partial = [path for path in root.iterdir() if _PARTIAL.fullmatch(path.name)] if root.exists() else []
    removed = [path for path in _directories(root) if path.name not in keep]
    for path in removed:
        # Without its manifest it is no checkpoint: a removal that is interrupted leaves none that looks whole.
        remove(path / META)
        remove(path)
    for path in partial:
        remove(path)
    return sorted(path.name for path in removed)


def _directories(root: Path) -> list[Path]:
    return [path for path in root.iterdir() if _STEP.fullmatch(path.name)] if root.exists() else []


def _committed(root: Path) -> list[Path]:
    return [path for path in _directories(root) if read_json(path / META) is not None]


def _milestone(directory: Path, every: int) -> bool:
    return every > 0 and _step(directory) % every == 0


def _step(directory: Path) -> int:
    return int(directory.name.removeprefix("step_"))
