"""The Docker engines of a simulation: one in each namespace, with folders, socket and cgroup of its own."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import structlog

from openclaw_core.cluster.errors import ClusterError
from openclaw_core.cluster.processes import OwnedProcess, Processes
from openclaw_core.cluster.simulation.network import call, inside, processes_in
from openclaw_core.cluster.simulation.state import SimulatedHost, SimulationState

if TYPE_CHECKING:
    import docker

log = structlog.get_logger(__name__)

START_DEADLINE_S = 60
STOP_DEADLINE_S = 30
CGROUPS = Path("/sys/fs/cgroup")


def start_engine(state: SimulationState, host: SimulatedHost) -> OwnedProcess:
    """In the host's namespace; the caller waits until it answers."""
    file = host.directory / "daemon.json"
    file.write_text(json.dumps(_config(host), indent=2))
    command = inside(host, "dockerd", "--config-file", str(file))
    return Processes(state.processes).start(host.engine, command, log_file=state.logs / f"{host.engine}.log")


def await_engine(host: SimulatedHost, process: OwnedProcess, deadline_s: float = START_DEADLINE_S) -> None:
    """Until it answers. Raises ClusterError with its last words where it ends or stays silent."""
    end = time.monotonic() + deadline_s
    while time.monotonic() < end and process.handle() is not None:
        if engine_answers(host):
            return
        time.sleep(0.05)
    raise ClusterError(f"the Docker engine of {host.name} does not answer: {process.log_tail(5) or 'no log'}")


def engine_answers(host: SimulatedHost) -> bool:
    """Whether it does now."""
    try:
        with _client(host, timeout_s=5) as client:
            return client.ping()
    except ClusterError:
        return False


def stop_engine(state: SimulationState, host: SimulatedHost) -> None:
    """Its containers, then the engine itself; where it is dead already, what it left running."""
    processes = Processes(state.processes)
    if processes.find(host.engine) and engine_answers(host):
        _remove_containers(host)
    processes.stop(host.engine, grace_s=STOP_DEADLINE_S)
    _end_containers(host)


def kill_engine(state: SimulationState, host: SimulatedHost) -> None:
    """As when the machine loses its power: nothing is told, nothing is tidied."""
    process = Processes(state.processes).find(host.engine)
    leader = process.handle() if process else None
    # The engine first: it would start containers again that end before it.
    end_processes([leader] if leader else [])
    _end_containers(host)


def end_processes(processes: list[psutil.Process]) -> None:
    """SIGKILL, and wait for their end. Raises ClusterError naming those that stay."""
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()  # psutil leaves a pid alone that is another's by now
    _, left = psutil.wait_procs(processes, timeout=10)
    if left:
        raise ClusterError(f"pids {[process.pid for process in left]} have not ended after SIGKILL")


def containers_of(host: SimulatedHost) -> list[str]:
    """Names of those that run. Raises ClusterError where the engine does not answer."""
    with _client(host) as client:
        return sorted(container.name or container.id or "" for container in client.containers.list(ignore_removed=True))


def run_in_container(host: SimulatedHost, archive: bytes, command: Sequence[str]) -> None:
    """Make an image of a tar archive and run a command in it. Raises ClusterError where that fails."""
    with _client(host) as client:
        client.api.import_image_from_data(archive, repository="trial", tag="1")
        client.containers.run("trial:1", list(command), network_mode="host", remove=True)


def unmount_below(directory: Path) -> None:
    """What an engine has mounted: its network namespace, and after a hard end the containers' /dev/shm. Deepest first."""
    for place in sorted(mounts_below(directory), key=lambda path: len(path.parts), reverse=True):
        call("umount", str(place))


def mounts_below(directory: Path) -> list[Path]:
    """Mount points in it; one that is mounted over counts once for each."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    # Paths that have a space stand escaped; the simulation's own have none (state).
    places = (Path(line.split(" ")[4]) for line in lines)
    return [place for place in places if place.is_relative_to(directory)]


def remove_cgroups(host: SimulatedHost) -> None:
    """The engine's own, in every hierarchy, the inner ones first."""
    for root in cgroups_of(host):
        for directory, _, _ in os.walk(root, topdown=False):
            _remove_cgroup(Path(directory))


def cgroups_of(host: SimulatedHost) -> list[Path]:
    """In version 1 one for each controller, in version 2 a single one."""
    return [path for path in (CGROUPS / host.cgroup, *CGROUPS.glob(f"*/{host.cgroup}")) if path.is_dir()]


def _config(host: SimulatedHost) -> dict[str, object]:
    # Runs where nobody may set rlimits, load kernel modules or mount overlays; containers have the host's network or none.
    return {
        "storage-driver": "vfs",
        "data-root": str(host.directory / "data"),
        "exec-root": str(host.exec_root),
        "pidfile": str(host.directory / "docker.pid"),
        "hosts": [f"unix://{host.socket}"],
        "bridge": "none",
        "iptables": False,
        "ip6tables": False,
        "ip-forward": False,
        "ip-masq": False,
        "userland-proxy": False,
        "exec-opts": ["native.cgroupdriver=cgroupfs"],
        "cgroup-parent": f"/{host.cgroup}",
    }


@contextlib.contextmanager
def _client(host: SimulatedHost, timeout_s: int = 60) -> Iterator[docker.DockerClient]:
    # Optional packages: ``lacks`` says so where they are missing.
    import docker
    import docker.errors
    import requests

    try:
        with contextlib.closing(docker.DockerClient(base_url=f"unix://{host.socket}", timeout=timeout_s)) as client:
            yield client
    except (docker.errors.DockerException, requests.RequestException) as error:
        raise ClusterError(f"the Docker engine of {host.name}: {error}") from None


def _remove_containers(host: SimulatedHost) -> None:
    from docker.errors import NotFound

    try:
        with _client(host) as client:
            for container in client.containers.list(all=True, ignore_removed=True):
                with contextlib.suppress(NotFound):  # one that is removed by itself (--rm)
                    container.remove(force=True, v=True)
    except ClusterError as error:
        # They end with their engine all the same, less gently.
        log.warning("containers_not_removed", host=host.name, error=str(error))


def _end_containers(host: SimulatedHost) -> None:
    end_processes(_containers_and_shims(host))
    # A shim that is killed leaves its socket, in a directory that all engines of this machine share.
    for file in host.exec_root.glob("containerd/daemon/io.containerd.runtime.v2.task/*/*/address"):
        Path(file.read_text().removeprefix("unix://")).unlink(missing_ok=True)


def _containers_and_shims(host: SimulatedHost) -> list[psutil.Process]:
    """What an engine leaves running when it is killed: containerd, a shim for each container, and what is in them."""
    found = {process for process in processes_in(host) if _serves(process, host)}
    for root in cgroups_of(host):
        for file in root.rglob("cgroup.procs"):
            with contextlib.suppress(FileNotFoundError, psutil.NoSuchProcess):
                found.update(psutil.Process(int(pid)) for pid in file.read_text().split())
    return list(found)


def _serves(process: psutil.Process, host: SimulatedHost) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return any(Path(word).is_relative_to(host.exec_root) for word in process.cmdline())
    return False


def _remove_cgroup(directory: Path, deadline_s: float = 10) -> None:
    end = time.monotonic() + deadline_s
    while directory.exists():
        try:
            directory.rmdir()
        except OSError as error:
            # The kernel lets a cgroup go a moment after its last process.
            if time.monotonic() > end:
                raise ClusterError(f"cgroup {directory} cannot be removed: {error}") from None
            time.sleep(0.05)
