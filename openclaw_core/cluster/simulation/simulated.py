"""Several hosts on one machine, for tests and for trying things out: real SSH servers and Docker engines on a real network.

Each host is a network namespace with an address of its own, an SSH server, a Docker engine, and folders. Everything else the
hosts share with this machine: files, users, process ids and the clock. So one host's disk is not full while another's is
empty, a process id names the same process on all of them, and no two clocks differ. Only root can make one, on Linux.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import structlog

from openclaw_core.cluster.errors import ClusterError
from openclaw_core.cluster.processes import Processes
from openclaw_core.cluster.simulation.cleanup import take_down
from openclaw_core.cluster.simulation.engine import (
    await_engine,
    containers_of,
    engine_answers,
    kill_engine,
    start_engine,
)
from openclaw_core.cluster.simulation.network import (
    check_traffic,
    choosing,
    free_subnet,
    link_is_up,
    make_network,
    set_link,
)
from openclaw_core.cluster.simulation.ssh import await_server, make_keys, start_server
from openclaw_core.cluster.simulation.state import (
    NAMES,
    STATE_FILE,
    SimulatedHost,
    SimulationState,
    plan_simulation,
    read_state,
)
from openclaw_core.config.cluster import HostConfig, RoleName, SshConfig

log = structlog.get_logger(__name__)

CONNECT_TIMEOUT_S = 5


@dataclass(frozen=True, slots=True)
class HostState:
    """One host of a simulation, as it is now."""

    name: str
    address: str
    network: str
    """up, cut or gone."""
    ssh: bool
    engine: bool
    containers: tuple[str, ...]
    """Names of those that run."""

    @property
    def whole(self) -> bool:
        """Whether network, SSH server and engine are up."""
        return self.network == "up" and self.ssh and self.engine

    def as_json(self) -> dict[str, object]:
        return asdict(self)


class Simulation:
    """Hosts that are up. A context manager: they go with the block."""

    def __init__(self, state: SimulationState) -> None:
        self.state = state
        self.directory = state.directory
        self.subnet = state.subnet
        self.hosts: tuple[HostConfig, ...] = tuple(host.config() for host in state.hosts)
        self.ssh = SshConfig(key=state.key, known_hosts=state.known_hosts, connect_timeout_s=CONNECT_TIMEOUT_S)

    @classmethod
    def up(
        cls, directory: Path, names: Sequence[str] = NAMES, roles: Mapping[str, Sequence[RoleName]] | None = None
    ) -> Simulation:
        """Make the hosts and wait until each answers. What a failed start has made is taken down again.

        Args:
            directory: New or empty, its path short; ``down`` removes it.
            names: Of the hosts, the first being the head.
            roles: By name; default: train and rollout for the first host, prm for the others.

        Raises:
            ClusterError: the machine lacks something (``lacks`` says what), or the directory holds something.
        """
        # As the kernel lists what is mounted in it.
        directory = directory.resolve()
        with choosing():
            state = plan_simulation(directory, names, roles or {}, free_subnet())
            _take(directory)
            # Before any of it is made: whoever ends this process, ``load(directory).down()`` knows what to look for.
            state.write()
            simulation = cls(state)
            with simulation._or_down():
                make_network(state)
        with simulation._or_down():
            simulation._start()
        log.info("simulation_up", directory=str(directory), subnet=str(state.subnet), hosts=list(names))
        return simulation

    @classmethod
    def load(cls, directory: Path) -> Simulation:
        """The one that another process has made there, whole or not. Raises ClusterError where there is none."""
        return cls(read_state(directory))

    def __enter__(self) -> Simulation:
        return self

    def __exit__(self, *_error: object) -> None:
        self.down()

    def cut(self, name: str) -> None:
        """Unplug a host from the network. Its processes go on."""
        set_link(self.state.host(name), up=False)

    def mend(self, name: str) -> None:
        """Plug it in again."""
        set_link(self.state.host(name), up=True)

    def end_engine(self, name: str) -> None:
        """SIGKILL to a host's engine and everything in its containers, as when the machine loses its power."""
        kill_engine(self.state, self.state.host(name))

    def start_engine(self, name: str) -> None:
        """Start a host's engine again after ``end_engine``; it finds its containers as ended ones."""
        host = self.state.host(name)
        await_engine(host, start_engine(self.state, host))

    def status(self) -> list[HostState]:
        """Every host, as it is now."""
        return [self._status(host) for host in self.state.hosts]

    def down(self) -> None:
        """Take everything down and remove the directory; also what is half made or half gone. Again: nothing happens."""
        take_down(self.state)
        log.info("simulation_down", directory=str(self.directory))

    @contextlib.contextmanager
    def _or_down(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self.down()
            raise

    def _start(self) -> None:
        state = self.state
        for host in state.hosts:
            host.work_root.mkdir(parents=True)
        make_keys(state)
        servers = [start_server(state, host) for host in state.hosts]
        engines = [start_engine(state, host) for host in state.hosts]
        for host, server, engine in zip(state.hosts, servers, engines, strict=True):
            await_server(host, server)
            await_engine(host, engine)
        check_traffic(state)

    def _status(self, host: SimulatedHost) -> HostState:
        network = {True: "up", False: "cut", None: "gone"}[link_is_up(host)]
        engine = engine_answers(host)
        return HostState(
            name=host.name,
            address=host.address,
            network=network,
            ssh=Processes(self.state.processes).find(host.sshd) is not None,
            engine=engine,
            containers=tuple(containers_of(host)) if engine else (),
        )


def _take(directory: Path) -> None:
    if (directory / STATE_FILE).exists():
        raise ClusterError(
            f"there is a simulation in {directory} already; take it down: openclaw-rl cluster sim down {directory}"
        )
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise ClusterError(f"{directory} holds something; a simulation needs a new or an empty directory, which goes with it")
    directory.mkdir(parents=True, exist_ok=True)
    directory.chmod(0o700)
