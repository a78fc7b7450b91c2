"""Hosts that are not reached: another key, an unknown one, a cut network. Against real servers."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import pytest

from openclaw_core.cluster.hosts import Hosts, Unreachable
from openclaw_core.cluster.simulation import Simulation
from openclaw_core.config.cluster import ClusterConfig
from tests.cluster.parts import cut, until

# A deadline rather than a hang: whatever is unreachable here must be said by then.
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(120)]


@contextlib.contextmanager
def with_ssh(cluster: ClusterConfig, **changes: object) -> Iterator[Hosts]:
    """Hosts that are reached in another way; validated, as a configuration is."""
    ssh = cluster.ssh.model_validate(cluster.ssh.model_dump() | changes)
    with Hosts(cluster.model_copy(update={"ssh": ssh})) as connected:
        yield connected


def test_a_host_with_another_key_than_the_known_one_is_refused(cluster_config: ClusterConfig, tmp_path: Path):
    first, second = cluster_config.hosts
    lines = dict(line.split(" ", 1) for line in cluster_config.ssh.known_hosts.read_text().splitlines())  # type: ignore[union-attr]
    known = tmp_path / "known hosts"
    known.write_text(f"{first.address} {lines[second.reached_at]}\n")
    for policy in ("verify", "accept-new"):
        with with_ssh(cluster_config, known_hosts=known, host_keys=policy) as hosts, pytest.raises(Unreachable) as error:
            hosts.head.run("true")
        assert "its host key is not the one in" in str(error.value)
        assert f"ssh-keygen -R {first.address} -f {known}" in str(error.value)
        assert "accept-new" not in str(error.value)


def test_an_unknown_host_is_refused_with_advice(cluster_config: ClusterConfig, tmp_path: Path):
    known = tmp_path / "known hosts"
    known.touch()
    with with_ssh(cluster_config, known_hosts=known) as hosts, pytest.raises(Unreachable) as error:
        hosts.head.run("true")
    assert f"its key must be in {known}" in str(error.value)
    assert "cluster.ssh.host_keys=accept-new" in str(error.value)


def test_accept_new_takes_an_unknown_key_and_keeps_it(cluster_config: ClusterConfig, tmp_path: Path):
    known = tmp_path / "known hosts"
    known.touch()
    with with_ssh(cluster_config, known_hosts=known, host_keys="accept-new") as hosts:
        assert hosts.head.run("echo", "in").stdout == "in\n"
    assert len(known.read_text().splitlines()) == 1  # hashed, where the machine's ssh_config says so
    with with_ssh(cluster_config, known_hosts=known) as hosts:
        assert hosts.head.run("echo", "known now").stdout == "known now\n"


def test_a_key_that_the_host_does_not_accept_is_refused_with_advice(cluster_config: ClusterConfig, tmp_path: Path):
    key = tmp_path / "100% other key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    with with_ssh(cluster_config, key=key) as hosts, pytest.raises(Unreachable, match="Permission denied") as error:
        hosts.head.run("true")
    assert "cluster.ssh.key, or a key of the agent, must be in its authorized_keys" in str(error.value)


def test_a_key_file_may_have_spaces_and_percent_signs_in_its_name(cluster_config: ClusterConfig, tmp_path: Path):
    assert cluster_config.ssh.key is not None
    key = tmp_path / "100% my key"
    key.write_bytes(cluster_config.ssh.key.read_bytes())
    key.chmod(0o600)
    with with_ssh(cluster_config, key=key) as hosts:
        assert hosts.head.run("echo", "in").stdout == "in\n"


def test_a_host_that_was_never_reached_is_unreachable(two_hosts: Simulation, cluster_config: ClusterConfig):
    with with_ssh(cluster_config, connect_timeout_s=1) as hosts, cut(two_hosts, "node-b"):
        node = hosts.named("node-b")
        assert not node.alive()
        with pytest.raises(Unreachable, match=rf"host node-b: root@{node.config.address} port 22 cannot be reached"):
            node.run("true")
        with pytest.raises(Unreachable):
            node.read(PurePosixPath("/etc/hostname"))


def test_a_host_that_is_cut_off_while_connected_is_unreachable_and_comes_back(
    two_hosts: Simulation, cluster_config: ClusterConfig, hosts: Hosts
):
    with with_ssh(cluster_config, connect_timeout_s=3, command_timeout_s=2) as impatient:
        node = impatient.named("node-b")
        node.run("true", timeout_s=60)
        with cut(two_hosts, "node-b"):
            for attempt in (lambda: node.run("true"), lambda: node.read(PurePosixPath("/etc/passwd"))):
                with pytest.raises(Unreachable, match="did not end within 2 s, and the host does not answer"):
                    attempt()
            assert hosts.head.run("echo", "untouched").stdout == "untouched\n"
        until(node.alive)
        assert node.run("echo", "back", timeout_s=60).stdout == "back\n"
