"""Which checkpoints count, which are taken, and which are kept."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from openclaw_core.trainer.parts import Part, record, verify
from openclaw_core.trainer.retention import (
    META,
    CheckpointError,
    CheckpointInfo,
    candidates,
    commit,
    latest,
    newest_whole,
    prune,
    read_info,
    retain,
    step_directory,
    withdraw,
)

HOST = "a"


def info(parts: dict[str, Part], data_parallel: int = 1) -> CheckpointInfo:
    ranks = {"tensor_parallel": 1, "data_parallel": data_parallel}
    return CheckpointInfo("bf16", {"layers": 2}, True, True, False, ranks, parts, {})


def write(root: Path, step: int, *, committed: bool = True) -> Path:
    """A checkpoint of one part, as far as files go."""
    directory = step_directory(root, step)
    directory.mkdir(parents=True)
    part = directory / "__0_0.distcp"
    part.write_bytes(b"weights of step %d" % step)
    if committed:
        commit(directory, [info({part.name: record(part, HOST)})], {"step": step})
    return directory


def whole(root: Path) -> Path | None:
    chosen = newest_whole(root, lambda name, parts: verify(root / name, parts, HOST))
    return chosen and chosen.directory


def test_the_latest_has_the_highest_step_and_a_whole_manifest(tmp_path: Path) -> None:
    assert latest(tmp_path / "checkpoints") is None
    write(tmp_path, 5)
    expected = write(tmp_path, 10)
    write(tmp_path, 15, committed=False)
    (write(tmp_path, 20) / META).write_text('{"dtype": "bf')
    (tmp_path / ".step_000025.partial").mkdir()

    assert latest(tmp_path) == expected


def test_steps_are_ordered_as_numbers(tmp_path: Path) -> None:
    first = write(tmp_path, 999_999)
    second = write(tmp_path, 1_000_000)

    assert latest(tmp_path) == second
    assert candidates(tmp_path) == [second, first]


def test_a_manifest_holds_the_parts_of_all_ranks_and_reads_back(tmp_path: Path) -> None:
    directory = tmp_path / "service" / "step_000005"
    parts = [{"__0_0.distcp": Part("a", 5, "00")}, {"__1_0.distcp": Part("b", 6, "01")}]
    written = commit(directory, [info(part, data_parallel=2) for part in parts], {"step": 5, "ledger": {"position": 17}})

    assert written.parts == parts[0] | parts[1]
    assert read_info(directory) == written
    assert [path.name for path in directory.iterdir()] == [META]


def test_a_checkpoint_is_committed_once_and_only_when_every_rank_has_answered(tmp_path: Path) -> None:
    directory = write(tmp_path, 5)

    with pytest.raises(CheckpointError, match="never overwritten"):
        commit(directory, [info({})])
    with pytest.raises(CheckpointError, match=r"1 ranks answered of \{'tensor_parallel': 1, 'data_parallel': 2\}"):
        commit(tmp_path / "step_000010", [info({}, data_parallel=2)])
    assert latest(tmp_path) == directory


def test_a_manifest_that_cannot_be_written_is_none(tmp_path: Path) -> None:
    (tmp_path / "root").write_text("a file")

    with pytest.raises(CheckpointError, match=r"step_000005/meta\.json cannot be written: .*Not a directory"):
        commit(tmp_path / "root" / "step_000005", [info({})])


@pytest.mark.parametrize(
    ("damage", "finding"),
    [
        (lambda part: part.write_bytes(part.read_bytes()[:-3]), "has 15 bytes, 18 were written"),
        (lambda part: part.unlink(), "is missing, 18 bytes were written"),
        (lambda part: part.write_bytes(b"W" + part.read_bytes()[1:]), "differs from its checksum"),
    ],
    ids=["truncated", "missing", "flipped byte"],
)
def test_a_damaged_checkpoint_is_named_and_the_one_before_is_taken(tmp_path: Path, damage, finding: str) -> None:
    previous, newest = write(tmp_path, 5), write(tmp_path, 10)
    assert whole(tmp_path) == newest
    damage(newest / "__0_0.distcp")

    chosen = newest_whole(tmp_path, lambda name, parts: verify(tmp_path / name, parts, HOST))

    assert chosen is not None
    assert chosen.directory == previous
    assert chosen.info.meta == {"step": 5}
    assert chosen.damaged == {newest: [f"{newest / '__0_0.distcp'} on a {finding}"]}


def test_no_whole_one_among_several_is_an_error_that_names_each(tmp_path: Path) -> None:
    assert whole(tmp_path) is None
    for step in (5, 10):
        (write(tmp_path, step) / "__0_0.distcp").unlink()
    (write(tmp_path, 15) / META).write_text("{")
    (write(tmp_path, 20) / META).write_text(json.dumps({"dtype": "bf16"}))

    with pytest.raises(CheckpointError) as error:
        whole(tmp_path)
    lines = str(error.value).splitlines()
    assert "is whole; move them away to start over" in lines[0]
    for step, line, problem in zip(
        (20, 15, 10, 5), lines[1:], ("another version", "is no checkpoint", "is missing", "is missing"), strict=True
    ):
        assert str(step_directory(tmp_path, step)) in line
        assert problem in line


def test_a_withdrawn_checkpoint_is_none_and_its_step_can_be_made_again(tmp_path: Path) -> None:
    previous, newest = write(tmp_path, 5), write(tmp_path, 10)
    withdraw([newest])

    assert latest(tmp_path) == previous
    commit(newest, [info({})])
    assert latest(tmp_path) == newest


def test_pruning_keeps_the_last_and_the_milestones_and_clears_what_is_not_whole(tmp_path: Path) -> None:
    directories = {step: write(tmp_path, step) for step in (5, 10, 15, 20, 25)}
    write(tmp_path, 30, committed=False)
    (tmp_path / ".step_000035.partial").mkdir()
    (tmp_path / "notes.txt").write_text("mine")

    assert prune(tmp_path, keep_last=2, keep_every=10) == ["step_000010", "step_000020", "step_000025"]
    assert set(tmp_path.iterdir()) == {*(directories[step] for step in (10, 20, 25)), tmp_path / "notes.txt"}
    assert prune(tmp_path, keep_last=1) == ["step_000025"]


def test_at_least_one_is_kept(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="keep_last=0"):
        prune(tmp_path, keep_last=0)


def test_another_host_keeps_what_is_named_though_it_has_no_manifests(tmp_path: Path) -> None:
    for step in (5, 10, 15):
        write(tmp_path, step, committed=False)

    assert retain(tmp_path, ["step_000010"]) == ["step_000005", "step_000015"]
    assert [path.name for path in tmp_path.iterdir()] == ["step_000010"]
    assert retain(tmp_path / "nowhere", []) == []


def test_a_directory_without_manifest_is_no_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"is no checkpoint: it has no meta\.json"):
        read_info(tmp_path)
