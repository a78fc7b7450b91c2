"""Simulated hosts: side by side, refused, failed, killed, and that nothing of them stays."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from openclaw_core.cluster.errors import ClusterError
from openclaw_core.cluster.hosts import Hosts
from openclaw_core.cluster.processes import Processes
from openclaw_core.cluster.simulation import Simulation
from openclaw_core.cluster.simulation import network as simulation_network
from openclaw_core.cluster.simulation.state import read_state
from openclaw_core.config.cluster import ClusterConfig
from tests.cluster.leftovers import leftovers
from tests.cluster.parts import broken_engine, cluster_of, engine, reaches, run_forever, until

pytestmark = pytest.mark.cluster


def test_two_simulations_stand_side_by_side(two_hosts: Simulation, hosts: Hosts, short: Path):
    with Simulation.up(short, ("solo",), roles={"solo": ("train", "rollout", "prm")}) as second:
        assert not second.subnet.overlaps(two_hosts.subnet)
        assert second.hosts[0].roles == ("train", "rollout", "prm")
        cluster = ClusterConfig(containers=True, image="none:1", hosts=second.hosts, ssh=second.ssh)
        with Hosts(cluster) as ours:
            assert ours.head.run("sh", "-c", "echo $NODE_NAME").stdout == "solo\n"
            assert not reaches(ours.head, two_hosts.hosts[0].reached_at, within_s=3)
    assert leftovers(second.state) == []
    assert hosts.head.run("echo", "still here").stdout == "still here\n"
    assert all(state.whole for state in two_hosts.status())


def test_nothing_stays_of_a_simulation_with_containers_and_sessions(short: Path, sim_archive: bytes):
    simulation = Simulation.up(short)
    state = simulation.state
    with Hosts(cluster_of(simulation)) as connected:
        for host in connected:
            host.run("sh", "-c", "nohup sleep 100000 > /dev/null 2>&1 &")
            with engine(host) as client:
                client.images.load(sim_archive)
                for mode in ("host", "none"):
                    run_forever(client, "openclaw-sim:1", network_mode=mode, restart_policy={"Name": "always"})
        sleeping = [p.pid for host in state.hosts for p in simulation_network.processes_in(host) if p.name() == "sleep"]
        # What the session left, and the container of the host's network, on each.
        assert len(sleeping) == 4
        assert {line.split()[0] for line in leftovers(state)} >= {
            "device",
            "namespace",
            "mount",
            "cgroup",
            "process",
            "directory",
        }
    simulation.down()
    assert leftovers(state) == []
    assert not any(psutil.pid_exists(pid) for pid in sleeping)
    simulation.down()
    with pytest.raises(ClusterError, match="no simulation in"):
        Simulation.load(short)


def test_an_engine_that_was_killed_with_its_containers_running_is_cleaned_up(short: Path, sim_archive: bytes):
    simulation = Simulation.up(short, ("solo",), roles={"solo": ("train", "rollout")})
    state = simulation.state
    with Hosts(cluster_of(simulation)) as connected, engine(connected.head) as client:
        client.images.load(sim_archive)
        for mode in ("host", "none"):
            run_forever(client, "openclaw-sim:1", network_mode=mode)
    # In a directory of the machine; their names do not say whose they are.
    sockets = [
        Path(file.read_text().removeprefix("unix://")) for file in short.glob("solo/x/containerd/daemon/*/moby/*/address")
    ]
    assert [socket.exists() for socket in sockets] == [True, True]
    # Only the engine: shims and containers live on, and what was mounted for them stays mounted.
    found = Processes(state.processes).find("dockerd-solo")
    assert found is not None
    psutil.Process(found.pid).kill()
    until(lambda: found.handle() is None)
    assert [line for line in leftovers(state) if line.startswith("mount")]
    Simulation.load(short).down()
    assert leftovers(state) == []
    assert not any(socket.exists() for socket in sockets)


KILLED_UP = """
import os, signal, sys
from pathlib import Path
from openclaw_core.cluster.simulation import network as simulation_network, simulated as simulation

module, name, words, calls = sys.argv[2], sys.argv[3], sys.argv[4], int(sys.argv[5])
module = {"simulation": simulation, "network": simulation_network}[module]
actual = getattr(module, name)
def last(*arguments, **options):
    global calls
    result = actual(*arguments, **options)
    calls -= not words or words in " ".join(arguments)
    if calls == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return result
setattr(module, name, last)
simulation.Simulation.up(Path(sys.argv[1]))
"""


@pytest.mark.parametrize(
    ("module", "function", "words", "calls"),
    [
        ("network", "call", "type bridge", 1),
        ("network", "call", "netns add", 1),
        ("network", "call", "type veth", 1),  # its other end has no address yet
        ("network", "call", "type veth", 2),
        ("simulation", "make_keys", "", 1),
        ("simulation", "start_server", "", 1),
        ("simulation", "start_engine", "", 1),  # not waited for
        ("simulation", "start_engine", "", 2),
        ("simulation", "await_engine", "", 1),
        ("simulation", "check_traffic", "", 1),  # whole
    ],
)
def test_what_an_up_leaves_that_was_killed_is_taken_down_by_another_process(
    short: Path, module: str, function: str, words: str, calls: int
):
    command = [sys.executable, "-c", KILLED_UP, str(short), module, function, words, str(calls)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    state = read_state(short)
    assert leftovers(state), "nothing was made, so nothing is shown"
    Simulation.load(short).down()
    assert leftovers(state) == []


def test_an_up_that_fails_says_why_and_takes_down_what_it_made(short: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    broken_engine(monkeypatch, tmp_path)
    made: list[Simulation] = []
    actual = Simulation._start
    monkeypatch.setattr(Simulation, "_start", lambda self: (made.append(self), actual(self)))
    with pytest.raises(ClusterError, match="the Docker engine of node-a does not answer: no graph driver today"):
        Simulation.up(short)
    assert leftovers(made[0].state) == []


def test_a_directory_that_holds_something_is_refused_and_left_as_it_is(short: Path):
    short.mkdir()
    (short / "mine").write_text("mine")
    with pytest.raises(ClusterError, match="holds something; a simulation needs a new or an empty directory"):
        Simulation.up(short)
    assert (short / "mine").read_text() == "mine"


def test_a_second_simulation_in_one_directory_is_refused(two_hosts: Simulation):
    with pytest.raises(ClusterError, match=r"there is a simulation in .* already; take it down: openclaw-rl cluster sim down"):
        Simulation.up(two_hosts.directory)
    assert all(state.whole for state in two_hosts.status())
