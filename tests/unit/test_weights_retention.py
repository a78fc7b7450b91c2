"""Which checkpoints count, and which are kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from openclaw_core.trainer.retention import META, CheckpointError, latest, prune, read_info, step_directory


def write(root: Path, step: int, marker: str | None = "{}") -> Path:
    directory = step_directory(root, step)
    directory.mkdir(parents=True)
    (directory / "__0_0.distcp").write_bytes(b"weights")
    if marker is not None:
        (directory / META).write_text(marker)
    return directory


def test_the_latest_has_the_highest_step_and_a_whole_marker(tmp_path: Path) -> None:
    assert latest(tmp_path / "checkpoints") is None
    write(tmp_path, 5)
    expected = write(tmp_path, 10)
    write(tmp_path, 15, marker=None)
    write(tmp_path, 20, marker='{"dtype": "bf')
    (tmp_path / ".step_000025.partial").mkdir()

    assert latest(tmp_path) == expected


def test_steps_are_ordered_as_numbers(tmp_path: Path) -> None:
    write(tmp_path, 999_999)
    expected = write(tmp_path, 1_000_000)

    assert latest(tmp_path) == expected


def test_pruning_keeps_the_last_whole_ones_and_clears_what_is_not_whole(tmp_path: Path) -> None:
    kept = [write(tmp_path, step) for step in (5, 10, 15)][1:]
    write(tmp_path, 20, marker=None)
    (tmp_path / ".step_000025.partial").mkdir()
    (tmp_path / "notes.txt").write_text("mine")
    prune(tmp_path, keep_last=2)

    assert set(tmp_path.iterdir()) == {*kept, tmp_path / "notes.txt"}


def test_at_least_one_is_kept(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="keep_last=0"):
        prune(tmp_path, keep_last=0)


def test_a_directory_without_marker_is_no_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"is no checkpoint: it has no meta\.json"):
        read_info(tmp_path)
