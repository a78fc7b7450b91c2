"""Parts of a checkpoint are checked where they lie and pulled, whole or not at all, from the host that holds them."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from openclaw_core.trainer import parts as module
from openclaw_core.trainer.parts import CheckpointError, Part, PartStore, ensure, record, verify

CONTENT = bytes(range(256)) * 40


@pytest.fixture
def manifest(tmp_path: Path) -> dict[str, Part]:
    """Two parts on host a."""
    directory = tmp_path / "a" / "step_000005"
    directory.mkdir(parents=True)
    for name in ("first", "second"):
        (directory / name).write_bytes(CONTENT + name.encode())
    return {name: record(directory / name, "a") for name in ("first", "second")}


class Line:
    """What ``ensure`` fetches by: a real store of each host, and a record of what was asked."""

    def __init__(self, root: Path) -> None:
        self._root, self.asked = root, []

    def __call__(self, host: str, path: str, offset: int, size: int) -> bytes:
        self.asked.append((path, offset, size))
        return PartStore(str(self._root / host)).read(path, offset, size)


def test_only_the_parts_that_are_asked_for_and_not_there_are_pulled_in_pieces(
    tmp_path: Path, manifest: dict[str, Part], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CHUNK", 4096)
    line, here = Line(tmp_path), tmp_path / "b" / "step_000005"

    assert ensure(here, ["first"], manifest, line) == ["first"]
    assert line.asked == [("step_000005/first", 0, 4096), ("step_000005/first", 4096, 4096), ("step_000005/first", 8192, 2053)]
    assert (here / "first").read_bytes() == CONTENT + b"first"
    assert not (here / "second").exists()
    assert ensure(here, ["first"], manifest, line) == []
    assert ensure(tmp_path / "a" / "step_000005", manifest, manifest, None) == []


def test_ranks_of_one_host_pull_a_part_once(tmp_path: Path, manifest: dict[str, Part]) -> None:
    line, here, pulled = Line(tmp_path), tmp_path / "b" / "step_000005", []
    started = threading.Event()

    def slowly(*arguments) -> bytes:
        started.set()
        later.join(0.5)  # the other one has every chance to pull too
        return line(*arguments)

    later = threading.Thread(target=lambda: (started.wait(), pulled.append(ensure(here, ["first"], manifest, line))))
    later.start()
    pulled.append(ensure(here, ["first"], manifest, slowly))
    later.join()

    assert sorted(pulled) == [[], ["first"]]
    assert len(line.asked) == 1


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"X" + CONTENT[1:] + b"first", "differs from its checksum"),
        (CONTENT, "has 10240 bytes, 10245 were written"),
    ],
    ids=["flipped byte", "truncated"],
)
def test_what_is_not_what_was_written_is_refused_and_not_kept(
    tmp_path: Path, manifest: dict[str, Part], content: bytes, problem: str
) -> None:
    here = tmp_path / "b" / "step_000005"
    (tmp_path / "a" / "step_000005" / "first").write_bytes(content)

    with pytest.raises(CheckpointError, match=f"step_000005/first as sent by a {problem}"):
        ensure(here, ["first"], manifest, Line(tmp_path))
    assert [path.name for path in here.iterdir()] == [".first.lock"]


def test_a_part_that_cannot_be_had_is_named_with_its_host(tmp_path: Path, manifest: dict[str, Part]) -> None:
    with pytest.raises(CheckpointError, match="first is missing, 10245 bytes were written; it was written on a"):
        ensure(tmp_path / "b" / "step_000005", ["first"], manifest, None)
    with pytest.raises(CheckpointError, match="has no part third"):
        ensure(tmp_path / "b" / "step_000005", ["third"], manifest, None)
    (tmp_path / "a" / "step_000005" / "first").unlink()
    with pytest.raises(CheckpointError, match=r"cannot be read: .*No such file"):
        ensure(tmp_path / "b" / "step_000005", ["first"], manifest, Line(tmp_path))


def test_verify_judges_a_hosts_own_parts_and_drops_damaged_copies_of_others(tmp_path: Path, manifest: dict[str, Part]) -> None:
    own, here = tmp_path / "a" / "step_000005", tmp_path / "b" / "step_000005"
    ensure(here, manifest, manifest, Line(tmp_path))
    for directory in (own, here):
        (directory / "first").write_bytes(b"X" * (len(CONTENT) + 5))

    assert verify(own, manifest, "a") == [f"{own / 'first'} on a differs from its checksum"]
    assert (own / "first").exists()
    assert verify(here, manifest, "b") == []
    assert not (here / "first").exists()
    assert (here / "second").exists()


@pytest.mark.parametrize("path", ["../b/secret", "/etc/hostname", "step_000005/../../b/secret", "link/secret", "", "."])
def test_a_store_reads_nothing_outside_its_root(tmp_path: Path, manifest: dict[str, Part], path: str) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "secret").write_text("x")
    (tmp_path / "a" / "link").symlink_to(tmp_path / "b")
    store = PartStore(str(tmp_path / "a"))

    with pytest.raises(CheckpointError, match="is not below"):
        store.read(path, 0, 10)


def test_a_store_retains_by_name(tmp_path: Path, manifest: dict[str, Part]) -> None:
    store = PartStore(str(tmp_path / "a"))

    assert store.verify("step_000005", manifest, "a") == []
    assert store.retain(["step_000005"]) == []
    assert (tmp_path / "a" / "step_000005").exists()
    assert store.retain([]) == ["step_000005"]
    assert not (tmp_path / "a" / "step_000005").exists()
