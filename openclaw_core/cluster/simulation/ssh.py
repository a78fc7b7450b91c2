"""The SSH servers of a simulation: one in each namespace, with host keys and a user key of the simulation's own."""

from __future__ import annotations

import shutil
import socket
import time
from pathlib import Path

from openclaw_core.cluster.errors import ClusterError
from openclaw_core.cluster.processes import OwnedProcess, Processes
from openclaw_core.cluster.simulation.network import call, inside
from openclaw_core.cluster.simulation.state import SimulatedHost, SimulationState

SERVER = "/usr/sbin/sshd"
"""By its whole path: it starts itself again for every connection, and refuses a relative one."""
START_DEADLINE_S = 30


def make_keys(state: SimulationState) -> None:
    """The user's key, a key for each host, and the files that an SSH client needs."""
    _make_key(state.key, "openclaw-simulation")
    (state.directory / "authorized_keys").write_bytes(state.key.with_suffix(".pub").read_bytes())
    known: list[str] = []
    entries: list[str] = []
    for host in state.hosts:
        _make_key(_host_key(host), host.name)
        kind, key, *_ = _host_key(host).with_suffix(".pub").read_text().split()
        known.append(f"{host.address} {kind} {key}\n")
        entries.append(_client_entry(state, host))
        (host.directory / "sshd_config").write_text(_server_config(state, host))
    state.known_hosts.write_text("".join(known))
    state.ssh_config.write_text("\n".join(entries))


def start_server(state: SimulationState, host: SimulatedHost) -> OwnedProcess:
    """In the host's namespace; the caller waits until it answers."""
    # The server's own requirement. It stays: other servers of this machine may rely on it by now.
    Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
    command = inside(host, SERVER, "-D", "-e", "-f", str(host.directory / "sshd_config"))
    return Processes(state.processes).start(host.sshd, command, log_file=state.logs / f"{host.sshd}.log")


def await_server(host: SimulatedHost, process: OwnedProcess, deadline_s: float = START_DEADLINE_S) -> None:
    """Until it greets. Raises ClusterError with its last words where it ends or stays silent."""
    end = time.monotonic() + deadline_s
    while time.monotonic() < end:
        try:
            with socket.create_connection((host.address, 22), timeout=2) as connection:
                if connection.recv(4) == b"SSH-":
                    return
        except OSError:
            if process.handle() is None:
                break
        time.sleep(0.02)
    raise ClusterError(f"the SSH server of {host.name} does not answer at {host.address}: {process.log_tail(5) or 'no log'}")


def _make_key(file: Path, comment: str) -> None:
    if shutil.which("ssh-keygen") is None:
        raise ClusterError("there is no program ssh-keygen on this machine: apt-get install openssh-client")
    call("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", str(file))


def _host_key(host: SimulatedHost) -> Path:
    return host.directory / "host_key"


def _server_config(state: SimulationState, host: SimulatedHost) -> str:
    # StrictModes asks that every folder up to / belongs to the user, which one below /tmp does not.
    return f"""\
Port 22
ListenAddress {host.address}
HostKey {_host_key(host)}
PidFile none
AuthorizedKeysFile {state.directory / "authorized_keys"}
AuthenticationMethods publickey
PermitRootLogin prohibit-password
UsePAM no
StrictModes no
UseDNS no
PrintMotd no
MaxStartups 50:30:100
MaxSessions 50
SetEnv SHLVL=1 NODE_NAME={host.name} DOCKER_HOST=unix://{host.socket}
Subsystem sftp internal-sftp
"""


def _client_entry(state: SimulationState, host: SimulatedHost) -> str:
    return f"""\
Host {host.name} {host.address}
  HostName {host.address}
  User root
  IdentityFile {state.key}
  IdentitiesOnly yes
  UserKnownHostsFile {state.known_hosts}
"""
