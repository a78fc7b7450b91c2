"""Commands, files and sockets of hosts over SSH, against real servers and engines."""

from __future__ import annotations

import hashlib
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import docker
import pytest

from openclaw_core.cluster import hosts as module
from openclaw_core.cluster.errors import ClusterError
from openclaw_core.cluster.hosts import WRITE, Host, HostError, Hosts, Unreachable, on_each
from openclaw_core.config.cluster import ClusterConfig
from tests.cluster.parts import ping, until

# A deadline rather than a hang: whatever is unreachable here must be said by then.
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(120)]


@pytest.fixture
def head(hosts: Hosts) -> Host:
    return hosts.head


@pytest.fixture
def place(head: Host) -> Iterator[PurePosixPath]:
    """A directory on the first host that does not exist yet."""
    directory = head.work_root / "test-hosts"
    yield directory
    head.run("rm", "-rf", str(directory))


@pytest.mark.parametrize(
    "word",
    [
        "a b",
        "",
        "'",
        '"',
        "$HOME",
        "`id`",
        "$(id)",
        "a\nb\n\nc",
        "\\",
        "*",
        "~",
        "-n",
        ";exit 3",
        "&",
        "#",
        "é€\U0001f600",
        "\t",
    ],
    ids=repr,
)
def test_a_word_reaches_the_command_as_it_is(head: Host, word: str):
    assert head.run("printf", "[%s]", word, word).stdout == f"[{word}][{word}]"


def test_each_command_runs_on_its_own_host(hosts: Hosts):
    said = [host.run("ip", "-4", "-o", "addr", "show", "dev", "eth0").stdout for host in hosts]
    assert all(f" {host.config.reached_at}/24 " in text for host, text in zip(hosts, said, strict=True))


def test_input_reaches_the_command_and_without_it_there_is_none(head: Host):
    assert head.run("cat", input=b"first\nsecond").stdout == "first\nsecond"
    assert head.run("cat").stdout == ""


def test_a_failed_command_is_an_error_with_status_and_what_it_said(head: Host):
    with pytest.raises(HostError) as error:
        head.run("sh", "-c", "echo to stdout; echo what is wrong >&2; exit 7")
    assert str(error.value) == (
        "host node-a: sh -c 'echo to stdout; echo what is wrong >&2; exit 7' ended with status 7: what is wrong"
    )
    assert error.value.host == "node-a"


def test_without_check_the_status_is_the_callers(head: Host):
    done = head.run("sh", "-c", "echo out; echo err >&2; exit 7", check=False)
    assert (done.code, done.stdout, done.stderr) == (7, "out\n", "err\n")


def test_a_commands_own_status_255_is_not_taken_for_a_lost_connection(head: Host):
    assert head.run("sh", "-c", "exit 255", check=False).code == 255
    with pytest.raises(HostError, match="status 255") as error:
        head.run("sh", "-c", "exit 255")
    assert not isinstance(error.value, Unreachable)


def test_a_command_that_takes_too_long_is_given_up(head: Host):
    with pytest.raises(HostError, match=r"sleep 20 did not end within 0\.5 s; it may be running there still") as error:
        head.run("sleep", "20", timeout_s=0.5)
    assert not isinstance(error.value, Unreachable)
    assert head.run("echo", "goes on").stdout == "goes on\n"


def test_a_big_binary_file_comes_back_as_it_was_written(head: Host, place: PurePosixPath):
    data = os.urandom(20_000_000)
    head.write(place / "deep" / "er" / "big file", data)
    assert hashlib.sha256(head.read(place / "deep" / "er" / "big file")).digest() == hashlib.sha256(data).digest()


@pytest.mark.parametrize(("mode", "shown"), [(None, "600"), (0o640, "640"), (0o755, "755")])
def test_a_file_has_the_mode_that_was_asked_for(head: Host, place: PurePosixPath, mode: int | None, shown: str):
    head.write(place / "file", b"x", **({} if mode is None else {"mode": mode}))
    assert head.run("stat", "-c", "%a", str(place / "file")).stdout.strip() == shown


def test_an_empty_file_can_be_written(head: Host, place: PurePosixPath):
    head.write(place / "file", b"")
    assert head.read(place / "file") == b""


def test_a_secret_is_on_no_command_line(head: Host, place: PurePosixPath, monkeypatch: pytest.MonkeyPatch):
    lines: list[list[str]] = []
    actual = head.line
    monkeypatch.setattr(head, "line", lambda *command: lines.append(actual(*command)) or lines[-1])
    head.write(place / "secret", b"not for ps")
    assert len(lines) == 1
    assert "not for ps" not in " ".join(lines[0])
    assert head.read(place / "secret") == b"not for ps"


def test_a_write_that_breaks_off_leaves_the_old_file_and_no_part(head: Host, place: PurePosixPath):
    head.write(place / "file", b"old")
    # What the host sees when the connection breaks in the middle: the end of the input, too early.
    with pytest.raises(HostError, match=r"only 4 of 1000 bytes of .*/file came through"):
        head.run("sh", "-c", WRITE, "write", str(place / "file"), "600", "1000", input=b"half")
    assert head.read(place / "file") == b"old"
    assert head.run("ls", str(place)).stdout == "file\n"


def test_a_file_that_does_not_exist_is_an_error_that_names_it(head: Host, place: PurePosixPath):
    with pytest.raises(HostError, match=rf"host node-a: {place}/none cannot be read: .*No such file"):
        head.read(place / "none")


def test_the_socket_leads_to_the_hosts_own_engine(hosts: Hosts):
    found: list[str] = []
    for host in hosts:
        with host.socket(host.config.docker_socket) as socket:
            client = docker.DockerClient(base_url=f"unix://{socket}")
            assert client.ping()
            found.append(client.info()["DockerRootDir"])
            client.close()
        assert not socket.exists()
    assert found == [str(host.work_root.parent / "data") for host in hosts]


def test_two_blocks_can_lead_to_one_socket(head: Host):
    with head.socket(head.config.docker_socket) as outer:
        with head.socket(head.config.docker_socket) as inner:
            assert outer != inner
            assert ping(inner)
        assert ping(outer)


def test_a_socket_stays_usable_when_nothing_has_used_it_for_long(head: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "IDLE_S", 1)
    with head.socket(head.config.docker_socket) as socket:
        time.sleep(4)  # no timing is asserted: longer would be as good
        assert ping(socket)


def test_a_socket_that_does_not_exist_is_an_error_that_names_it(head: Host):
    with (
        pytest.raises(HostError, match=r"the Unix socket /run/none\.sock does not exist; is its server running"),
        head.socket(PurePosixPath("/run/none.sock")),
    ):
        pass


def test_errors_of_all_hosts_are_told_together(hosts: Hosts):
    with pytest.raises(ClusterError) as error:
        on_each(hosts.all, lambda host: host.run("sh", "-c", f"echo {host.name} is broken >&2; exit 1"))
    lines = str(error.value).splitlines()
    assert [line.split(":")[0] for line in lines] == ["host node-a", "host node-b"]
    assert [line.rpartition(": ")[2] for line in lines] == ["node-a is broken", "node-b is broken"]


def test_an_error_of_one_host_does_not_keep_the_others_from_their_work(hosts: Hosts):
    def fail_on_the_first(host: Host) -> str:
        return host.run(*(("false",) if host.name == "node-a" else ("touch", str(host.work_root / "done")))).stdout

    with pytest.raises(ClusterError, match="node-a") as error:
        on_each(hosts.all, fail_on_the_first)
    assert "node-b" not in str(error.value)
    assert hosts.named("node-b").run("rm", str(hosts.named("node-b").work_root / "done")).code == 0


def test_results_come_in_the_order_of_the_hosts(hosts: Hosts):
    def slower_on_the_first(host: Host) -> str:
        return host.run("sh", "-c", f"sleep {0.5 if host.name == 'node-a' else 0}; echo $NODE_NAME").stdout.strip()

    assert on_each(hosts.all, slower_on_the_first) == ["node-a", "node-b"]
    assert on_each([], slower_on_the_first) == []


def test_many_commands_share_a_connection(head: Host):
    """The SSH server counts the logins: a handshake for each command would be refused by MaxStartups of many a server."""
    said = {head.run("sh", "-c", "echo $SSH_CONNECTION").stdout for _ in range(5)}
    assert len(said) == 1


def test_connections_and_their_files_end_with_the_block(cluster_config: ClusterConfig):
    with Hosts(cluster_config) as hosts:
        on_each(hosts.all, lambda host: host.run("true"))
        directory = hosts.head._control.parent
        masters = [host.run("sh", "-c", "echo $SSH_CONNECTION").stdout.split()[1] for host in hosts]
        assert len(set(masters)) == 2
    assert not directory.exists()
    until(lambda: str(directory) not in subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True).stdout)
