"""What goes to hosts: digests of code and build contexts, and containers in Docker's terms."""

from __future__ import annotations

import tarfile
import time
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from openclaw_core.cluster.copies.code import build_wheel, built_wheel, code_digest
from openclaw_core.cluster.copies.pipes import is_full
from openclaw_core.cluster.docker.build_context import described_by_wheel, packed_context
from openclaw_core.cluster.docker.errors import until
from openclaw_core.cluster.docker.terms import create_arguments, spec_digest
from openclaw_core.cluster.errors import ClusterError
from openclaw_core.cluster.specs import ContainerSpec, Mount
from openclaw_core.config.cluster import BuildConfig

SPEC = ContainerSpec(host="a", name="n", role="worker", image="i:1", command=("true",))


def wheel_of(path: Path, files: dict[str, str], year: int) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED if year % 2 else zipfile.ZIP_STORED) as archive:
        for name, text in files.items():
            archive.writestr(zipfile.ZipInfo(name, (year, 1, 1, 0, 0, 0)), text)
    return path


def test_two_builds_of_the_same_sources_have_one_digest(tmp_path: Path):
    files = {"a.py": "a", "b.py": "b", "p-1.dist-info/RECORD": "a\nb\n"}
    first = code_digest(wheel_of(tmp_path / "1.whl", files, 2020))
    turned = dict(reversed(files.items())) | {"p-1.dist-info/RECORD": "b\na\n"}
    assert code_digest(wheel_of(tmp_path / "2.whl", turned, 2021)) == first
    assert code_digest(wheel_of(tmp_path / "3.whl", files | {"b.py": "c"}, 2020)) != first
    assert code_digest(wheel_of(tmp_path / "4.whl", {"a.py": "a", "c.py": "b"}, 2020)) != first
    assert len(first) == 16


def test_what_is_no_wheel_or_no_checkout_is_named(tmp_path: Path):
    (tmp_path / "x.whl").write_text("x")
    with pytest.raises(ClusterError, match=r"x\.whl cannot be read as a wheel"):
        code_digest(tmp_path / "x.whl")
    with pytest.raises(ClusterError, match=r"p-1\.data/scripts/x, which only pip would know where to put"):
        code_digest(wheel_of(tmp_path / "y.whl", {"p-1.data/scripts/x": ""}, 2020))
    with pytest.raises(ClusterError, match=r"is no checkout of the project \(no pyproject\.toml\); name a wheel"):
        build_wheel(tmp_path / "out", tmp_path)
    with pytest.raises(ClusterError, match=r"z\.whl does not exist; build it"), built_wheel(tmp_path / "z.whl"):
        pass


@pytest.fixture
def context(tmp_path: Path) -> Path:
    (tmp_path / "sub").mkdir()
    (tmp_path / "Dockerfile").write_text("FROM scratch\n")
    (tmp_path / ".dockerignore").write_text("# all but\n\n*\n!sub\nsub/*.log\n")
    (tmp_path / "sub" / "kept").write_text("x")
    (tmp_path / "sub" / "a.log").write_text("x")
    (tmp_path / "other").write_text("x")
    return tmp_path


def packed(build: BuildConfig) -> tuple[set[str], str]:
    with packed_context(build) as (stream, digest), tarfile.open(fileobj=stream) as archive:
        return set(archive.getnames()), digest


def test_a_context_holds_what_dockerignore_leaves(context: Path):
    names, _ = packed(BuildConfig(context=context))
    assert names == {".dockerignore", "Dockerfile", "sub", "sub/kept"}


def test_a_context_s_digest_is_of_what_is_sent(context: Path):
    build = BuildConfig(context=context, args={"A": "1"})
    digests = [packed(build)[1]]
    (context / "other").write_text("y")
    (context / "sub" / "a.log").write_text("y")
    (context / "sub" / "kept").write_text("x")  # another time
    assert packed(build)[1] == digests[0]
    digests.append(packed(build.model_copy(update={"args": {"A": "2"}}))[1])
    (context / "sub" / "kept").chmod(0o755)
    digests.append(packed(build)[1])
    (context / "sub" / "kept").write_text("z")
    digests.append(packed(build)[1])
    (context / "Dockerfile").write_text("FROM scratch\nLABEL a=b\n")
    digests.append(packed(build)[1])
    assert len(set(digests)) == len(digests)


def test_labels_say_what_code_the_context_has(context: Path):
    build = BuildConfig(context=context)
    assert described_by_wheel(build) == {}
    wheels = context / "image/wheels"
    wheels.mkdir(parents=True)
    wheel = wheel_of(wheels / "openclaw_rl-1.2-py3-none-any.whl", {"a.py": "a"}, 2020)
    assert described_by_wheel(build) == {"VERSION": "1.2", "CODE_DIGEST": code_digest(wheel)}
    wheel_of(wheels / "openclaw_rl-1.3-py3-none-any.whl", {"a.py": "b"}, 2020)
    assert described_by_wheel(build) == {}, "the build says which are there, and fails"


def test_a_spec_s_digest_is_of_every_field():
    changed = [replace(SPEC, environment={"A": "1"}), replace(SPEC, mounts=(Mount("/a", "/b"),)), replace(SPEC, restarts=1)]
    assert len({spec_digest(spec) for spec in (SPEC, *changed)}) == 4
    assert spec_digest(SPEC) == spec_digest(replace(SPEC))


def test_mounts_that_are_absent_are_left_out():
    spec = replace(SPEC, mounts=(Mount("/a", "/b", read_only=False), Mount("/c", "/d", optional=True)))
    arguments = create_arguments(spec, frozenset({"/c"}))
    assert [(mount["Source"], mount["Target"], mount["ReadOnly"]) for mount in arguments["mounts"]] == [("/a", "/b", False)]
    assert "restart_policy" not in arguments


def test_items_come_until_the_deadline():
    def slow() -> Iterator[int]:
        yield 1
        time.sleep(1)
        yield 2

    assert list(until(slow(), time.monotonic() + 30, AssertionError)) == [1, 2]
    got: list[int] = []
    with pytest.raises(TimeoutError, match="late"):
        got.extend(item for item in until(slow(), time.monotonic() + 0.3, lambda: TimeoutError("late")))
    with pytest.raises(ZeroDivisionError):
        list(until((1 // number for number in (1, 0)), time.monotonic() + 30, AssertionError))


@pytest.mark.parametrize(
    ("said", "full"),
    [
        ("dd: error writing '/x': No space left on device", True),
        ("dd: Disk quota exceeded", True),
        ("dd: Permission denied", False),
    ],
)
def test_a_full_disk_is_known_by_the_words_of_dd(said: str, full: bool):
    assert is_full(said) is full
