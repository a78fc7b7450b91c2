"""Can this machine simulate hosts? Tried rather than guessed: a host is made, used and taken down."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import os
import shutil
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from openclaw_core.cluster.checks import Check
from openclaw_core.cluster.errors import ClusterError
from openclaw_core.cluster.hosts import Host
from openclaw_core.cluster.simulation.cleanup import take_down
from openclaw_core.cluster.simulation.engine import await_engine, run_in_container, start_engine
from openclaw_core.cluster.simulation.image import BUSYBOX, needs_interpreter
from openclaw_core.cluster.simulation.network import choosing, free_subnet, make_network
from openclaw_core.cluster.simulation.ssh import SERVER, await_server, make_keys, start_server
from openclaw_core.cluster.simulation.state import SimulationState, plan_simulation
from openclaw_core.config.cluster import SshConfig

PROGRAMS = {
    "ip": "iproute2",
    "nsenter": "util-linux",
    "umount": "mount",
    "bash": "bash",
    "ssh": "openssh-client",
    "ssh-keygen": "openssh-client",
    SERVER: "openssh-server",
    "dockerd": "docker.io",
    "containerd": "containerd",
    str(BUSYBOX): "busybox-static",
}
"""Program → its Debian package."""


def check_simulation() -> list[Check]:
    """A row for everything that a simulation needs of this machine. Takes some seconds; leaves nothing behind."""
    rows = [_system(), *_programs(), _docker_package()]
    return rows if any(not row.ok for row in rows) else [*rows, *_trial()]


def lacks() -> list[Check]:
    """What this machine lacks for a simulation, with advice; empty: nothing."""
    return [row for row in check_simulation() if not row.ok]


def _system() -> Check:
    found = f"{sys.platform}, user id {os.geteuid()}"
    return Check("root on Linux", found, sys.platform == "linux" and os.geteuid() == 0, "run it as root: sudo, or a container")


def _programs() -> Iterator[Check]:
    missing = {program: package for program, package in PROGRAMS.items() if shutil.which(program) is None}
    for program, package in missing.items():
        yield Check(f"program {program}", "not installed", False, f"apt-get install --no-install-recommends {package}")
    if str(BUSYBOX) not in missing and needs_interpreter(BUSYBOX):
        yield Check(f"program {BUSYBOX}", "needs shared libraries", False, "apt-get install busybox-static")
    yield Check("programs", f"{len(PROGRAMS) - len(missing)} of {len(PROGRAMS)} installed", True)


def _docker_package() -> Check:
    found = importlib.util.find_spec("docker") is not None
    return Check("package docker", "installed" if found else "not installed", found, "make setup")


def _trial() -> Iterator[Check]:
    """One host, step by step, until the first that fails."""
    steps: dict[str, tuple[Callable[[SimulationState], str], str]] = {
        "ssh server": (_login, "root's account must not be locked: usermod -p '*' root"),
        "docker engine": (_engine, "it needs cgroups that can be written; in a container: docker run --privileged"),
        "containers": (_container, "runc must be installed, and cgroups and namespaces allowed"),
    }
    with choosing():
        try:
            subnet = free_subnet()
        except ClusterError as error:
            yield Check("subnet", str(error), False, "take down simulations that nobody needs any more")
            return
        directory = Path(tempfile.mkdtemp(prefix="openclaw-trial-", dir="/tmp")).resolve()
        state = plan_simulation(directory, ("trial",), {}, subnet)
        state.write()
        network = _tried(
            "namespaces", _network, state, "it needs CAP_NET_ADMIN and CAP_SYS_ADMIN; in a container: --privileged"
        )
    try:
        yield network
        fit = network.ok
        for name, (step, advice) in steps.items():
            if fit:
                row = _tried(name, step, state, advice)
                fit = row.ok
                yield row
    finally:
        take_down(state)


def _tried(name: str, step: Callable[[SimulationState], str], state: SimulationState, advice: str) -> Check:
    try:
        return Check(name, step(state), True)
    except ClusterError as error:
        return Check(name, str(error), False, advice)


def _network(state: SimulationState) -> str:
    make_network(state)
    return f"a bridge and a namespace in {state.subnet} were made"


def _login(state: SimulationState) -> str:
    host = state.hosts[0]
    host.work_root.mkdir(parents=True)
    make_keys(state)
    await_server(host, start_server(state, host))
    ssh = SshConfig(key=state.key, known_hosts=state.known_hosts, connect_timeout_s=5)
    client = Host(host.config(), ssh, state.directory / "control")
    with contextlib.closing(client):
        client.run("true")
    return f"a login at {host.address} works"


def _engine(state: SimulationState) -> str:
    await_engine(state.hosts[0], start_engine(state, state.hosts[0]))
    return "dockerd starts and answers"


def _container(state: SimulationState) -> str:
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as files:
        files.add(BUSYBOX.resolve(), "busybox")
    run_in_container(state.hosts[0], archive.getvalue(), ("/busybox", "true"))
    return "one was run"
