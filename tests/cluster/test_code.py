"""The project's code on hosts: once for each digest, whole, and known again from its files."""

from __future__ import annotations

import os
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import openclaw_core
from openclaw_core.cluster.copies.code import MARKER, build_wheel, code_digest, code_path, digest_on, push_code
from openclaw_core.cluster.docker.containers import Engine
from openclaw_core.cluster.errors import ClusterError
from openclaw_core.cluster.hosts import Host, Hosts
from openclaw_core.cluster.specs import ContainerSpec, environment, labels

pytestmark = pytest.mark.cluster


def made_wheel(folder: Path, text: str) -> Path:
    """A small wheel of the right form."""
    folder.mkdir(exist_ok=True)
    wheel = folder / "openclaw_rl-0.1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("openclaw_core/__init__.py", "")
        archive.writestr("openclaw_core/cli.py", text)
        script = zipfile.ZipInfo("openclaw_core/run it.sh")
        script.external_attr = 0o100755 << 16
        archive.writestr(script, "#!/bin/sh\n")
        archive.writestr("openclaw_rl-0.1.dist-info/RECORD", text * 2)
    return wheel


@pytest.fixture(autouse=True)
def no_code(hosts: Hosts) -> Iterator[None]:
    """Each test begins and ends without any."""
    for host in hosts:
        host.run("rm", "-rf", str(host.work_root / "code"))
    yield
    for host in hosts:
        host.run("rm", "-rf", str(host.work_root / "code"))


def test_code_is_unpacked_on_every_host_and_pushed_once(hosts: Hosts, tmp_path: Path):
    wheel, told = made_wheel(tmp_path, "a = 1"), []
    digest = push_code(hosts, wheel, told.append)
    assert digest == code_digest(wheel)
    assert told == [f"node-a: code {digest} is there", f"node-b: code {digest} is there"]
    for host in hosts:
        path = Path(code_path(host, digest))
        assert path == Path(host.work_root) / "code" / digest
        assert (path / "openclaw_core" / "cli.py").read_text() == "a = 1"
        assert os.access(path / "openclaw_core" / "run it.sh", os.X_OK)
        assert path.stat().st_mode & 0o755 == 0o755
        assert digest_on(host, digest) == digest
        (path / "openclaw_core" / "__pycache__").mkdir()
        (path / "openclaw_core" / "__pycache__" / "cli.cpython-311.pyc").write_bytes(b"x")
        assert digest_on(host, digest) == digest
    told.clear()
    assert push_code(hosts, wheel, told.append) == digest
    assert told == [f"node-a: code {digest} is there already", f"node-b: code {digest} is there already"]


@pytest.mark.parametrize("change", ["changed", "added", "removed"])
def test_a_change_on_a_host_is_noticed_and_the_next_push_mends_it(hosts: Hosts, tmp_path: Path, change: str):
    wheel, told = made_wheel(tmp_path, "a = 1"), []
    digest = push_code(hosts, wheel, told.append)
    a, b = hosts.all
    folder = Path(code_path(b, digest)) / "openclaw_core"
    if change == "removed":
        (folder / "cli.py").unlink()
    else:
        (folder / ("cli.py" if change == "changed" else "more.py")).write_text("a = 2")
    assert digest_on(b, digest) not in (digest, None)
    assert digest_on(a, digest) == digest
    told.clear()
    push_code(hosts, wheel, told.append)
    assert told[1] == f"node-b: code {digest} was changed there and is there again"
    assert digest_on(b, digest) == digest


def test_code_that_was_cut_off_while_it_was_unpacked_does_not_count(hosts: Hosts, tmp_path: Path):
    wheel = made_wheel(tmp_path, "a = 1")
    digest = push_code(hosts, wheel, lambda _: None)
    host = hosts.all[0]
    (Path(code_path(host, digest)) / MARKER).unlink()
    assert digest_on(host, digest) is None
    told: list[str] = []
    push_code(hosts, wheel, told.append)
    assert told[0] == f"node-a: code {digest} is there"
    assert digest_on(host, digest) == digest


def test_the_newest_three_stay_and_what_is_pushed_again_is_new(hosts: Hosts, tmp_path: Path):
    folder = Path(hosts.all[0].work_root) / "code"
    digests = []
    for number in range(3):
        digests.append(push_code(hosts, made_wheel(tmp_path, f"a = {number}"), lambda _: None))
        os.utime(folder / digests[-1], (1000 + number, 1000 + number))
    push_code(hosts, made_wheel(tmp_path, "a = 0"), lambda _: None)
    digests.append(push_code(hosts, made_wheel(tmp_path, "a = 3"), lambda _: None))
    assert {path.name for path in folder.iterdir()} == {digests[0], digests[2], digests[3]}


def test_code_that_a_container_of_any_run_has_is_never_removed(hosts: Hosts, sim_image: str, tmp_path: Path):
    a, b = hosts.all
    first = push_code(hosts, made_wheel(tmp_path, "a = 0"), lambda _: None)
    name, of = "oc-code", labels("of-another-run", a.config, "head")
    variables = environment(hosts.cluster, a.config, first)
    old = ContainerSpec(a.name, name, "head", sim_image, ("sleep", "600"), environment=variables, labels=of)
    with Engine(a) as engine:
        engine.start(old)
        try:
            pushed = [push_code(hosts, made_wheel(tmp_path, f"a = {number}"), lambda _: None) for number in range(1, 5)]
            assert there(a) == {first, *pushed[1:]}
            assert digest_on(a, first) == first
            assert there(b) == {*pushed[1:]}
        finally:
            engine.remove([name], grace_s=0)
    last = push_code(hosts, made_wheel(tmp_path, "a = 5"), lambda _: None)
    assert there(a) == {*pushed[2:], last}


def there(host: Host) -> set[str]:
    return {path.name for path in Path(host.work_root / "code").iterdir()}


def test_a_host_without_room_is_named(hosts: Hosts, tmp_path: Path):
    host = hosts.named("node-b")
    host.run("touch", str(host.work_root / "code"))
    with pytest.raises(ClusterError, match=r"host node-b: .*code") as error:
        push_code(hosts, made_wheel(tmp_path, "a = 1"), lambda _: None)
    assert "node-a" not in str(error.value)


def test_the_project_s_own_wheel_is_the_same_when_built_twice_and_runs_from_where_it_was_pushed(hosts: Hosts, tmp_path: Path):
    first, second = build_wheel(tmp_path / "1"), build_wheel(tmp_path / "2")
    assert code_digest(first) == code_digest(second)
    digest = push_code(hosts, first, lambda _: None)
    host = hosts.all[1]
    place = code_path(host, digest)
    said = host.run(
        "env", f"PYTHONPATH={place}", "PYTHONDONTWRITEBYTECODE=1", sys.executable, "-c",
        "import openclaw_core, importlib.metadata as m; print(openclaw_core.__file__, m.version('openclaw-rl'))",
    ).stdout  # fmt: skip
    assert said.split() == [f"{place}/openclaw_core/__init__.py", openclaw_core.__version__]
    assert digest_on(host, digest) == digest
