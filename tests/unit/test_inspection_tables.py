"""Files of per-token tables: whole or absent, the newest steps, bounded, and read back as they were written."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

from openclaw_core.inspection import tables
from openclaw_core.inspection.tables import TokenTableError, TokenTables
from openclaw_core.trainer.token_table import SampleTokens, TokenColumns
from tests.inspection_parts import distilled, reward_only


def assert_same(found: SampleTokens, expected: SampleTokens) -> None:
    assert (found.sample_id, found.hints, found.masked) == (expected.sample_id, expected.hints, expected.masked)
    for column in fields(TokenColumns):
        ours, theirs = getattr(found.columns, column.name), getattr(expected.columns, column.name)
        assert ours.dtype == theirs.dtype and ours.shape == theirs.shape, column.name
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("names", ["drd", "r", "d", "rr", ""])
def test_a_table_comes_back_exactly_as_it_was_written(tmp_path: Path, names: str) -> None:
    samples = [(distilled if kind == "d" else reward_only)(f"{kind}{i}") for i, kind in enumerate(names)]
    TokenTables(tmp_path, keep=1).write(7, samples)
    table = TokenTables(tmp_path).read(7)
    assert table is not None and table.left_out == ()
    assert [sample.sample_id for sample in table.samples] == [sample.sample_id for sample in samples]
    for sample in samples:
        found = table.of(sample.sample_id)
        assert found is not None
        assert_same(found, sample)
    assert table.of("another") is None


def test_the_newest_steps_are_kept_and_a_replay_changes_nothing(tmp_path: Path) -> None:
    kept = TokenTables(tmp_path, keep=2)
    for step in (1, 2, 3, 1_000_000):
        kept.write(step, [distilled("a")])
    assert kept.steps() == [3, 1_000_000]
    before = (tmp_path / "step-000003.npz").read_bytes()
    kept.write(2, [distilled("a")])  # replayed, and too old
    kept.write(3, [distilled("a")])
    assert kept.steps() == [3, 1_000_000] and kept.read(2) is None
    assert (tmp_path / "step-000003.npz").read_bytes() == before


def test_none_are_kept_with_zero(tmp_path: Path) -> None:
    TokenTables(tmp_path / "tables", keep=0).write(1, [distilled("a")])
    assert not (tmp_path / "tables").exists()


def test_samples_beyond_the_bound_are_left_out_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "MAX_BYTES", distilled("a").nbytes + reward_only("c").nbytes)
    TokenTables(tmp_path, keep=1).write(1, [distilled("a"), distilled("b"), reward_only("c")])
    table = TokenTables(tmp_path).read(1)
    assert table is not None
    assert [sample.sample_id for sample in table.samples] == ["a", "c"] and table.left_out == ("b",)


def test_a_write_that_fails_leaves_the_earlier_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = TokenTables(tmp_path, keep=2)
    kept.write(1, [distilled("a")])

    def full(file: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tables.os, "fsync", full)
    for step in (1, 2):
        with pytest.raises(OSError, match="No space left"):
            kept.write(step, [distilled("b")])
    table = kept.read(1)
    assert table is not None and table.of("a")
    assert [file.name for file in tmp_path.iterdir()] == ["step-000001.npz"]


@pytest.mark.parametrize("damage", [lambda b: b[: len(b) // 2], lambda b: b"", lambda b: b"not a zip"])
def test_a_damaged_table_is_named(tmp_path: Path, damage: object) -> None:
    TokenTables(tmp_path, keep=1).write(1, [distilled("a")])
    file = tmp_path / "step-000001.npz"
    file.write_bytes(damage(file.read_bytes()))  # type: ignore[operator]
    with pytest.raises(TokenTableError, match=r"step-000001\.npz is no table of tokens"):
        TokenTables(tmp_path).read(1)


def test_a_table_of_another_format_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(tables, "FORMAT", 2)
        TokenTables(tmp_path, keep=1).write(1, [distilled("a")])
    with pytest.raises(TokenTableError, match="has format 2; this version reads format 1"):
        TokenTables(tmp_path).read(1)
