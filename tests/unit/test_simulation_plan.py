"""Names of a simulation's parts, and the build context of its image: nothing is made on the machine."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from ipaddress import IPv4Network
from pathlib import Path

import pytest

from openclaw_core.cluster.errors import ClusterError
from openclaw_core.cluster.simulation import image as simulation_image
from openclaw_core.cluster.simulation.image import needs_interpreter, sim_build_context
from openclaw_core.cluster.simulation.state import STATE_FILE, SimulationState, plan_simulation, read_state

SUBNET = IPv4Network("10.199.77.0/24")
SHORT = Path("/tmp/sim")


def plan(names: Sequence[str] = ("node-a", "node-b"), directory: Path = SHORT) -> SimulationState:
    return plan_simulation(directory, names, {}, SUBNET)


def test_every_host_has_names_and_an_address_of_its_own():
    state = plan()
    for what in ("address", "namespace", "veth", "cgroup", "directory", "socket"):
        assert len({getattr(host, what) for host in state.hosts}) == 2
    assert [host.address for host in state.hosts] == ["10.199.77.1", "10.199.77.2"]
    assert state.gateway == "10.199.77.254"


def test_two_plans_share_no_name():
    first, second = plan(), plan()
    assert first.bridge != second.bridge
    assert not {host.veth for host in first.hosts} & {host.veth for host in second.hosts}


def test_the_kernel_takes_the_device_names_of_the_most_hosts():
    state = plan([f"node-{number}" for number in range(200)])
    assert max(len(name) for name in (state.bridge, *(host.veth for host in state.hosts))) <= 15
    assert len({state.gateway, *(host.address for host in state.hosts)}) == 201


@pytest.mark.parametrize(
    ("names", "said"),
    [
        ([], r"hosts \(none\): 1 to 200 names are needed"),
        (["a", "b", "a"], "hosts a, b, a: 1 to 200 names are needed, each once"),
        (["Node_A"], "host 'Node_A': String should match"),
        (["../up"], "host '../up': String should match"),
    ],
)
def test_names_that_do_not_do_are_refused(names: list[str], said: str):
    with pytest.raises(ClusterError, match=said):
        plan(names)


def test_roles_of_an_unknown_host_are_refused():
    with pytest.raises(ClusterError, match="roles for node-c, which is no host; there are: node-a"):
        plan_simulation(SHORT, ["node-a"], {"node-c": ["prm"]}, SUBNET)


def test_a_directory_whose_sockets_would_be_too_long_is_refused_with_the_excess():
    socket = len(str(plan(["n"]).hosts[0].exec_root / "containerd/containerd-debug.sock.ttrpc"))
    fitting = "/tmp/" + "d" * (len("sim") + 107 - socket)
    plan(["n"], Path(fitting))
    with pytest.raises(ClusterError, match=r"is 1 characters too long: .* choose a shorter directory or name"):
        plan(["n"], Path(fitting + "d"))


def test_a_directory_with_spaces_is_refused():
    with pytest.raises(ClusterError, match=r"only letters, digits and _ . / - are allowed"):
        plan(directory=Path("/tmp/my sim"))


def test_a_state_is_read_as_it_was_written():
    with tempfile.TemporaryDirectory(dir="/tmp") as name:  # short: sockets would be below it
        directory = Path(name)
        state = plan_simulation(directory, ["n"], {"n": ["train", "rollout"]}, SUBNET)
        state.write()
        assert read_state(directory) == state
        assert [file.name for file in directory.iterdir()] == [STATE_FILE]


def test_a_file_that_is_no_state_is_an_error_that_names_it(tmp_path: Path):
    (tmp_path / STATE_FILE).write_text(json.dumps({"bridge": "eth0"}))
    with pytest.raises(ClusterError, match=r"state\.json is not the state of a simulation of this version"):
        read_state(tmp_path)


@pytest.mark.skipif(not simulation_image.BUSYBOX.exists(), reason="busybox-static is not installed")
def test_the_build_context_has_the_dockerfile_and_all_that_it_copies(tmp_path: Path):
    context = sim_build_context(tmp_path / "new" / "context")
    copied = [line.split()[1] for line in (context / "Dockerfile").read_text().splitlines() if line.startswith("COPY")]
    assert sorted(file.name for file in context.iterdir()) == sorted(["Dockerfile", *copied])
    assert not needs_interpreter(context / "busybox")


def test_a_busybox_that_needs_libraries_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(simulation_image, "BUSYBOX", simulation_image.BASH)  # linked dynamically
    with pytest.raises(ClusterError, match=r"needs shared libraries, .* apt-get install busybox-static"):
        sim_build_context(tmp_path / "context")


def test_a_missing_program_is_named_with_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(simulation_image, "BUSYBOX", tmp_path / "busybox")
    with pytest.raises(ClusterError, match="busybox does not exist; apt-get install busybox-static"):
        sim_build_context(tmp_path / "context")
