"""Copying files between hosts through this machine: resumption, flaps, full disks, odd names."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import psutil
import pytest

from openclaw_core.cluster.copies.transfer import copy_file, copy_tree
from openclaw_core.cluster.errors import ClusterError
from openclaw_core.cluster.hosts import Host, HostError, Hosts, Unreachable, on_each
from openclaw_core.cluster.simulation import Simulation

pytestmark = pytest.mark.cluster

MB = 1 << 20
IN_FLIGHT = 12 * MB
"""What may be on its way when a connection breaks: pipes, ssh's windows, the kernel's buffers."""
ODD_NAMES = ("with space", "-dash", "qu'ote\"s", "$(touch x)`y`", "new\nline", "back\\slash", "ümlaut-漢", "*glob?[a]")


@pytest.fixture
def folders(hosts: Hosts) -> Iterator[dict[str, Path]]:
    """A folder on each host by its name. The hosts' disks are this machine's, so tests look at it directly."""
    found = {host.name: Path(host.work_root) / "transfer" for host in hosts}
    for folder in found.values():
        folder.mkdir()
    yield found
    for host in hosts:
        host.run("rm", "-rf", str(found[host.name]))


def random_file(path: Path, size: int) -> str:
    """Its sha256."""
    data = os.urandom(size)
    path.write_bytes(data)
    return hashlib.sha256(data).hexdigest()


def test_a_file_arrives_whole_with_its_mode_and_is_not_sent_again(hosts: Hosts, folders: dict[str, Path]):
    a, b = hosts.all
    source, to = folders["node-a"] / "x.bin", folders["node-b"] / "deep" / "er" / "y.bin"
    random_file(source, 3 * MB + 17)
    source.chmod(0o750)
    told: list[tuple[int, int]] = []
    copied = copy_file(a, source, b, to, progress=lambda done, total: told.append((done, total)))
    assert (copied.size, copied.sent, copied.tries) == (3 * MB + 17, 3 * MB + 17, 1)
    assert to.read_bytes() == source.read_bytes()
    assert to.stat().st_mode & 0o777 == 0o750
    assert told[0] == (0, copied.size)
    assert told[-1] == (copied.size, copied.size)
    assert told == sorted(told)
    assert list(to.parent.iterdir()) == [to]
    assert copy_file(a, source, b, to).sent == 0


def test_a_file_of_this_machine_goes_to_all_hosts_at_once(hosts: Hosts, folders: dict[str, Path], tmp_path: Path):
    random_file(tmp_path / "w", 2 * MB)
    copied = on_each(hosts.all, lambda host: copy_file(None, tmp_path / "w", host, PurePosixPath(folders[host.name] / "w")))
    assert [one.sent for one in copied] == [2 * MB, 2 * MB]
    assert all((folder / "w").read_bytes() == (tmp_path / "w").read_bytes() for folder in folders.values())


def test_an_empty_file_is_copied(hosts: Hosts, folders: dict[str, Path]):
    a, b = hosts.all
    (folders["node-a"] / "none").touch()
    copied = copy_file(a, folders["node-a"] / "none", b, folders["node-b"] / "none")
    assert (copied.sent, (folders["node-b"] / "none").stat().st_size) == (0, 0)


@pytest.mark.parametrize("from_this_machine", [False, True])
def test_a_tree_keeps_odd_names_and_executable_bits_and_sends_only_what_differs(
    hosts: Hosts, folders: dict[str, Path], tmp_path: Path, from_this_machine: bool
):
    a, b = hosts.all
    source, tree, to = (None, tmp_path, folders["node-b"]) if from_this_machine else (a, folders["node-a"], folders["node-b"])
    for index, name in enumerate(ODD_NAMES):
        (tree / f"in {name}").mkdir()
        (tree / f"in {name}" / name).write_bytes(os.urandom(100 * index))
    script = tree / "run.sh"
    script.write_text("#!/bin/sh\n")
    script.chmod(0o755)
    (tree / "link").symlink_to("run.sh")
    first = copy_tree(source, tree, b, to / "t")
    sizes = sum(100 * index for index in range(len(ODD_NAMES))) + 2 * len("#!/bin/sh\n")
    assert (first.files, first.skipped, first.size, first.sent) == (len(ODD_NAMES) + 2, 0, sizes, sizes)
    for name in ODD_NAMES:
        assert (to / "t" / f"in {name}" / name).read_bytes() == (tree / f"in {name}" / name).read_bytes()
    assert os.access(to / "t" / "run.sh", os.X_OK)
    assert not (to / "t" / "link").is_symlink()

    (to / "t" / "in with space" / "with space").write_text("changed")
    (to / "t" / "run.sh").chmod(0o644)
    (to / "t" / "own").write_text("of the target")
    told: list[tuple[int, int]] = []
    again = copy_tree(source, tree, b, to / "t", progress=lambda done, total: told.append((done, total)))
    assert (again.files, again.skipped, again.sent) == (len(ODD_NAMES) + 2, len(ODD_NAMES), 0)
    assert (to / "t" / "in with space" / "with space").read_bytes() == b""
    assert os.access(to / "t" / "run.sh", os.X_OK)
    assert (to / "t" / "own").exists()
    assert told[-1] == (10, 10)


def test_a_link_to_nothing_in_a_tree_is_named(hosts: Hosts, folders: dict[str, Path], tmp_path: Path):
    a, b = hosts.all
    for source, tree in ((a, folders["node-a"]), (None, tmp_path)):
        (tree / "dangling").symlink_to("nothing")
        with pytest.raises(HostError, match="dangling is neither a file nor a link to one"):
            copy_tree(source, tree, b, folders["node-b"] / "t")


def test_a_part_is_gone_on_from(hosts: Hosts, folders: dict[str, Path]):
    a, b = hosts.all
    source, to = folders["node-a"] / "x", folders["node-b"] / "x"
    random_file(source, 4 * MB)
    (folders["node-b"] / "x.part").write_bytes(source.read_bytes()[: 3 * MB + 5])
    copied = copy_file(a, source, b, to)
    assert copied.sent == MB - 5
    assert to.read_bytes() == source.read_bytes()


def test_a_wrong_checksum_removes_the_part_and_says_so(hosts: Hosts, folders: dict[str, Path]):
    a, b = hosts.all
    source, to = folders["node-a"] / "x", folders["node-b"] / "x"
    digest = random_file(source, MB)
    (folders["node-b"] / "x.part").write_bytes(bytes(1000))  # of an earlier file
    with pytest.raises(HostError, match=rf"node-b: .*x did not arrive as it was sent: its sha256 is not {digest}.*removed"):
        copy_file(a, source, b, to)
    assert list(folders["node-b"].iterdir()) == []
    with pytest.raises(HostError, match="sha256 is not 0000"):
        copy_file(a, source, b, to, sha256="0" * 64)
    assert list(folders["node-b"].iterdir()) == []


def test_a_longer_part_is_of_another_file_and_is_not_used(hosts: Hosts, folders: dict[str, Path]):
    a, b = hosts.all
    source, to = folders["node-a"] / "x", folders["node-b"] / "x"
    random_file(source, 1000)
    (folders["node-b"] / "x.part").write_bytes(bytes(2000))
    assert copy_file(a, source, b, to).sent == 1000
    assert to.read_bytes() == source.read_bytes()


def writers(host: Host) -> list[psutil.Process]:
    """The ssh children of this process that write to a host."""
    where = f"{host.config.user}@{host.config.reached_at}"
    return [
        child
        for child in psutil.Process().children()
        if (line := child.cmdline()) and line[0] == "ssh" and where in line and "dd of=" in line[-1]
    ]


def test_a_killed_connection_is_gone_on_from(hosts: Hosts, folders: dict[str, Path]):
    a, b = hosts.all
    size, killed = 96 * MB, []
    source, to = folders["node-a"] / "x", folders["node-b"] / "x"
    digest = random_file(source, size)

    def kill_at_a_third(done: int, total: int) -> None:
        if not killed and done > total // 3:
            killed.extend(writers(b))
            killed[0].send_signal(signal.SIGKILL)

    copied = copy_file(a, source, b, to, progress=kill_at_a_third)
    assert killed
    assert copied.tries == 2
    assert size <= copied.sent < size + IN_FLIGHT
    assert hashlib.sha256(to.read_bytes()).hexdigest() == digest


def test_a_cut_of_the_network_is_gone_on_from(two_hosts: Simulation, hosts: Hosts, folders: dict[str, Path]):
    a, b = hosts.all
    size, cut = 96 * MB, threading.Event()
    source, to = folders["node-a"] / "x", folders["node-b"] / "x"
    digest = random_file(source, size)

    def mend() -> None:
        cut.wait(60)
        time.sleep(20)  # long enough for ssh to give the connection up
        two_hosts.mend("node-b")

    def cut_at_a_third(done: int, total: int) -> None:
        if not cut.is_set() and done > total // 3:
            two_hosts.cut("node-b")
            cut.set()

    mending = threading.Thread(target=mend)
    mending.start()
    try:
        copied = copy_file(a, source, b, to, progress=cut_at_a_third)
    finally:
        cut.set()
        mending.join()
    assert copied.tries > 1
    assert size <= copied.sent < size + IN_FLIGHT
    assert hashlib.sha256(to.read_bytes()).hexdigest() == digest


def test_a_host_that_stays_away_ends_the_copy_and_the_next_one_goes_on(
    two_hosts: Simulation, hosts: Hosts, folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("openclaw_core.cluster.copies.transfer.TRIES", 2)
    a, b = hosts.all
    size = 64 * MB
    source, to = folders["node-a"] / "x", folders["node-b"] / "x"
    random_file(source, size)
    try:
        with pytest.raises(Unreachable, match=r"host node-b: .*x\.part on node-b stays, and the next copy goes on from there"):
            copy_file(a, source, b, to, progress=lambda done, _: two_hosts.cut("node-b") if done > size // 2 else None)
    finally:
        two_hosts.mend("node-b")
    there = (folders["node-b"] / "x.part").stat().st_size
    assert there > size // 2 - IN_FLIGHT
    copied = copy_file(a, source, b, to)
    assert copied.sent == size - there
    assert to.read_bytes() == source.read_bytes()


def test_a_host_that_cannot_be_reached_at_first_is_an_error_at_once(two_hosts: Simulation, hosts: Hosts, tmp_path: Path):
    random_file(tmp_path / "x", 10)
    two_hosts.cut("node-b")
    try:
        started = time.monotonic()
        with pytest.raises(Unreachable, match="node-b"):
            copy_file(None, tmp_path / "x", hosts.named("node-b"), hosts.named("node-b").work_root / "x")
        assert time.monotonic() - started < 20
    finally:
        two_hosts.mend("node-b")


@pytest.fixture
def small_disk(folders: dict[str, Path]) -> Iterator[Path]:
    """8 MB on node-b."""
    place = folders["node-b"] / "small"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(place)], check=True)
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_a_disk_that_is_too_small_is_said_before_anything_is_sent(hosts: Hosts, folders: dict[str, Path], small_disk: Path):
    a, b = hosts.all
    random_file(folders["node-a"] / "x", 9 * MB)
    told: list[int] = []
    with pytest.raises(HostError) as error:
        copy_file(a, folders["node-a"] / "x", b, small_disk / "x", progress=lambda done, _: told.append(done))
    assert str(error.value).startswith(
        f"host node-b: no room for {small_disk}/x: {9 * MB:,} bytes more are needed, {8 * MB:,} are free at {small_disk}"
    )
    assert told == []


def test_a_disk_that_fills_up_on_the_way_is_said_and_the_copy_goes_on_when_there_is_room(
    hosts: Hosts, folders: dict[str, Path], small_disk: Path
):
    a, b = hosts.all
    source, other = folders["node-a"] / "x", small_disk / "other"
    random_file(source, 7 * MB)

    def fill(done: int, _total: int) -> None:
        if done > MB and not other.exists():
            other.write_bytes(bytes(4 * MB))

    with pytest.raises(HostError, match=rf"host node-b: no room for {small_disk}/x: [\d,]+ bytes more are needed, 0 are free"):
        copy_file(a, source, b, small_disk / "x", progress=fill)
    there = (small_disk / "x.part").stat().st_size
    other.unlink()
    assert copy_file(a, source, b, small_disk / "x").sent == 7 * MB - there
    assert (small_disk / "x").read_bytes() == source.read_bytes()


def test_a_missing_file_and_a_folder_that_cannot_be_made_are_named(hosts: Hosts, folders: dict[str, Path], tmp_path: Path):
    a, b = hosts.all
    with pytest.raises(HostError, match=r"host node-a: .*nothing"):
        copy_file(a, folders["node-a"] / "nothing", b, folders["node-b"] / "x")
    with pytest.raises(ClusterError, match="nothing is no file of this machine"):
        copy_file(None, tmp_path / "nothing", b, folders["node-b"] / "x")
    random_file(tmp_path / "x", 10)
    (folders["node-b"] / "file").touch()
    with pytest.raises(HostError, match=r"host node-b: .*Not a directory|host node-b: .*File exists"):
        copy_file(None, tmp_path / "x", b, folders["node-b"] / "file" / "x")
