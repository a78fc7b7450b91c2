"""What a simulation consists of, written down before any of it is made, so that another process can take it down."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping, Sequence
from ipaddress import IPv4Network
from pathlib import Path, PurePosixPath

from pydantic import ValidationError

from openclaw_core.cluster.errors import ClusterError
from openclaw_core.config.cluster import HostConfig, RoleName
from openclaw_core.config.section import Section

NAMES = ("node-a", "node-b")
STATE_FILE = "state.json"
MOST_HOSTS = 200
UNIX_PATH_LIMIT = 107
"""Characters of a Unix socket's path, a limit of the kernel."""


class SimulatedHost(Section):
    """One host: a namespace, a pair of network devices, a folder, and the processes that its folder's files name."""

    name: str
    roles: tuple[RoleName, ...]
    address: str
    namespace: str
    veth: str
    """This machine's end of the cable; the other end is eth0 of the namespace."""
    cgroup: str
    directory: Path

    @property
    def work_root(self) -> Path:
        return self.directory / "work"

    @property
    def socket(self) -> Path:
        """Of the Docker engine."""
        return self.directory / "docker.sock"

    @property
    def exec_root(self) -> Path:
        """The engine's state at run time. Short: containerd's sockets are below it."""
        return self.directory / "x"

    @property
    def sshd(self) -> str:
        """Name of the recorded process."""
        return f"sshd-{self.name}"

    @property
    def engine(self) -> str:
        """Name of the recorded process."""
        return f"dockerd-{self.name}"

    def config(self) -> HostConfig:
        """As a run sees it."""
        return HostConfig(
            name=self.name,
            roles=self.roles,
            address=self.address,
            work_root=PurePosixPath(self.work_root),
            docker_socket=PurePosixPath(self.socket),
            interface="eth0",
        )


class SimulationState(Section):
    """Everything that ``up`` makes, by name."""

    directory: Path
    subnet: IPv4Network
    bridge: str
    hosts: tuple[SimulatedHost, ...]

    @property
    def gateway(self) -> str:
        """This machine's address on the bridge."""
        return str(self.subnet[254])

    @property
    def key(self) -> Path:
        return self.directory / "id"

    @property
    def known_hosts(self) -> Path:
        return self.directory / "known_hosts"

    @property
    def ssh_config(self) -> Path:
        return self.directory / "ssh_config"

    @property
    def processes(self) -> Path:
        """Where the pids and start times are recorded."""
        return self.directory / "processes"

    @property
    def logs(self) -> Path:
        return self.directory / "logs"

    def host(self, name: str) -> SimulatedHost:
        """Raises ClusterError naming those that there are."""
        for host in self.hosts:
            if host.name == name:
                return host
        raise ClusterError(f"no host {name!r} in {self.directory}; there are: {', '.join(host.name for host in self.hosts)}")

    def write(self) -> None:
        """Into its directory, whole or not at all."""
        file = self.directory / STATE_FILE
        temporary = file.with_suffix(".tmp")
        temporary.write_text(self.model_dump_json(indent=2))
        temporary.replace(file)


def plan_simulation(
    directory: Path, names: Sequence[str], roles: Mapping[str, Sequence[RoleName]], subnet: IPv4Network
) -> SimulationState:
    """Name all parts; nothing is made. Raises ClusterError for names, roles or a directory that do not do."""
    if not 1 <= len(names) <= MOST_HOSTS or len(set(names)) < len(names):
        raise ClusterError(f"hosts {', '.join(names) or '(none)'}: 1 to {MOST_HOSTS} names are needed, each once")
    if unknown := sorted(set(roles) - set(names)):
        raise ClusterError(f"roles for {', '.join(unknown)}, which is no host; there are: {', '.join(names)}")
    # Part of every device's name, of which the kernel takes 15 characters; several simulations can exist at once.
    prefix = f"oc{secrets.token_hex(3)}"
    hosts = tuple(
        SimulatedHost(
            name=name,
            roles=tuple(roles.get(name, ("train", "rollout") if number == 1 else ("prm",))),
            address=str(subnet[number]),
            namespace=f"{prefix}-{name}",
            veth=f"{prefix}v{number}",
            cgroup=f"{prefix}-{name}",
            directory=directory / name,
        )
        for number, name in enumerate(names, 1)
    )
    _check(hosts)
    return SimulationState(directory=directory, subnet=subnet, bridge=prefix, hosts=hosts)


def read_state(directory: Path) -> SimulationState:
    """Raises ClusterError where there is none."""
    file = directory.absolute() / STATE_FILE
    try:
        return SimulationState.model_validate_json(file.read_text())
    except (FileNotFoundError, NotADirectoryError):
        raise ClusterError(f"no simulation in {directory}: {file} does not exist") from None
    except ValidationError as error:
        raise ClusterError(f"{file} is not the state of a simulation of this version: {error}") from None


def _check(hosts: Sequence[SimulatedHost]) -> None:
    for host in hosts:
        try:
            host.config()
        except ValidationError as error:
            raise ClusterError(f"host {host.name!r}: {error.errors()[0]['msg']}") from None
        if not re.fullmatch(r"[\w./-]+", str(host.directory)):
            raise ClusterError(f"directory {host.directory}: only letters, digits and _ . / - are allowed; choose another one")
        longest = host.exec_root / "containerd" / "containerd-debug.sock.ttrpc"
        if (excess := len(str(longest)) - UNIX_PATH_LIMIT) > 0:
            raise ClusterError(
                f"directory {host.directory} is {excess} characters too long: {longest} is a Unix socket, "
                f"whose path may have {UNIX_PATH_LIMIT}; choose a shorter directory or name"
            )
