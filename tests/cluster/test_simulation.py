"""Simulated hosts: what each has of its own, and what can be done to them."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from openclaw_core.cluster.errors import ClusterError
from openclaw_core.cluster.hosts import Hosts
from openclaw_core.cluster.processes import Processes
from openclaw_core.cluster.simulation import Simulation
from tests.cluster.parts import engine, reaches, run_forever, until

pytestmark = pytest.mark.cluster


# What each host has


def test_hosts_reach_each_other_and_have_their_own_addresses(two_hosts: Simulation, hosts: Hosts):
    first, second = hosts
    assert reaches(first, second.config.reached_at)
    assert reaches(second, first.config.reached_at)
    for host in hosts:
        shown = host.run("ip", "-4", "-o", "addr", "show", "scope", "global").stdout
        assert [line.split()[1:4] for line in shown.splitlines()] == [["eth0", "inet", f"{host.config.reached_at}/24"]]


def test_the_first_host_trains_and_the_others_judge(two_hosts: Simulation):
    assert [(host.name, host.roles) for host in two_hosts.hosts] == [("node-a", ("train", "rollout")), ("node-b", ("prm",))]


def test_each_host_has_an_engine_with_its_own_images(hosts: Hosts, sim_image: str):
    first, second = hosts
    with engine(first) as ours, engine(second) as theirs:
        ours.images.get(sim_image).tag("only-here", "1")
        assert "only-here:1" not in {tag for image in theirs.images.list() for tag in image.tags}
        ours.images.remove("only-here:1")


def test_a_container_with_the_hosts_network_has_the_hosts_address(hosts: Hosts, sim_image: str):
    with engine(hosts.head) as client:
        shown = client.containers.run(sim_image, ["ip", "-4", "addr", "show", "eth0"], network_mode="host", remove=True)
    assert f"inet {hosts.head.config.reached_at}/24" in shown.decode()


def test_the_image_has_a_shell_and_a_bash_that_takes_the_machines_libraries(hosts: Hosts, sim_image: str):
    libraries = {path: {"bind": path, "mode": "ro"} for path in ("/usr/lib", "/usr/lib64") if Path(path).exists()}
    with engine(hosts.head) as client:
        sh = client.containers.run(sim_image, ["sh", "-c", "stat -c %a /tmp; readlink /lib; readlink /lib64"], remove=True)
        bash = client.containers.run(sim_image, ["bash", "-c", "echo ${BASH_VERSINFO[0]}"], remove=True, volumes=libraries)
    assert sh.decode().split() == ["1777", "usr/lib", "usr/lib64"]
    assert int(bash) >= 5


def test_the_work_roots_are_apart(hosts: Hosts):
    first, second = hosts
    first.write(first.work_root / "mine", b"1")
    assert "mine" not in second.run("ls", str(second.work_root)).stdout.split()
    first.run("rm", str(first.work_root / "mine"))


# What can be done to them


def test_a_host_that_is_cut_is_reached_by_nobody_until_it_is_mended(two_hosts: Simulation, hosts: Hosts):
    first, second = hosts
    address = second.config.reached_at
    two_hosts.cut("node-b")
    try:
        assert not reaches(first, address, within_s=3)
        assert [state.network for state in two_hosts.status()] == ["up", "cut"]
    finally:
        two_hosts.mend("node-b")
    until(lambda: reaches(first, address))
    assert all(state.whole for state in two_hosts.status())


def test_a_container_runs_on_while_its_host_is_cut(two_hosts: Simulation, hosts: Hosts, sim_image: str):
    with engine(hosts.head) as client:
        container = run_forever(client, sim_image)
        process = psutil.Process(container.attrs["State"]["Pid"] or client.api.inspect_container(container.id)["State"]["Pid"])
        two_hosts.cut("node-a")
        try:
            assert process.is_running()
            assert two_hosts.status()[0].containers == (container.name,)
        finally:
            two_hosts.mend("node-a")
    until(hosts.head.alive)
    with engine(hosts.head) as client:
        client.containers.get(container.id or "").remove(force=True)


def test_an_ended_engine_takes_its_containers_along_and_no_others(two_hosts: Simulation, hosts: Hosts, sim_image: str):
    first = hosts.head
    other = Processes(two_hosts.state.processes).find("dockerd-node-b")
    with engine(first) as client:
        # Not of the host's network: found by their cgroup, not by the namespace.
        containers = [run_forever(client, sim_image, network_mode=mode) for mode in ("host", "none")]
        ids = [container.id or "" for container in containers]
        pids = [client.api.inspect_container(name)["State"]["Pid"] for name in ids]
    two_hosts.end_engine("node-a")
    try:
        assert not any(psutil.pid_exists(pid) for pid in pids)
        assert [(state.engine, state.ssh) for state in two_hosts.status()] == [(False, True), (True, True)]
        assert other is not None
        assert Processes(two_hosts.state.processes).find("dockerd-node-b") == other
        assert first.run("echo", "ssh goes on").stdout == "ssh goes on\n"
    finally:
        two_hosts.start_engine("node-a")
    with engine(first) as client:
        assert {client.containers.get(name).status for name in ids} == {"exited"}
        assert client.containers.run(sim_image, ["echo", "again"], network_mode="host", remove=True) == b"again\n"
        for name in ids:
            client.containers.get(name).remove(force=True)


def test_an_unknown_name_is_refused_with_those_that_there_are(two_hosts: Simulation):
    for act in (two_hosts.cut, two_hosts.mend, two_hosts.end_engine, two_hosts.start_engine):
        with pytest.raises(ClusterError, match=r"no host 'node-c' in .*; there are: node-a, node-b"):
            act("node-c")
