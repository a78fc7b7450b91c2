"""The hosts of a run over SSH: commands, small files, and a way to their Docker engine.

OpenSSH's own client does it, so that agents, keys on hardware, jump hosts and ~/.ssh/config work as the operator is used to.
One connection a host is opened and shared (ControlMaster); it is closed with ``Hosts``.
"""

from __future__ import annotations

import contextlib
import hashlib
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TypeVar

import structlog

from openclaw_core.cluster.errors import ClusterError
from openclaw_core.config.cluster import ClusterConfig, HostConfig, RoleName, SshConfig

log = structlog.get_logger(__name__)

T = TypeVar("T")

CONNECTION_FAILED = 255
"""Exit status of ssh itself; a command's own status may be the same."""


class HostError(ClusterError):
    """A host cannot be reached, or a command on it failed. ``host`` is its name."""

    def __init__(self, host: str, message: str) -> None:
        super().__init__(f"host {host}: {message}")
        self.host = host


class Unreachable(HostError):
    """SSH did not get through: no route, no server, a key that is not accepted, a host key that is not the known one."""


@dataclass(frozen=True, slots=True)
class Output:
    """What a command left behind."""

    code: int
    stdout: str
    stderr: str


class Host:
    """One host. Commands are lists of words; each is quoted for the remote shell. Thread-safe."""

    def __init__(self, config: HostConfig, ssh: SshConfig, control: Path) -> None:
        self.config = config
        self.name = config.name
        self._ssh, self._control = ssh, control

    @property
    def work_root(self) -> PurePosixPath:
        """Below it is everything that is kept on the host."""
        return self.config.work_root

    def run(self, *command: str, input: bytes | None = None, timeout_s: float | None = None, check: bool = True) -> Output:
        """Run a command to its end.

        Args:
            input: Its standard input; None: empty.
            timeout_s: None: ssh.command_timeout_s.
            check: Whether an exit status other than 0 is an error.

        Raises:
            Unreachable: the host did not answer.
            HostError: the command failed (with ``check``), or did not end in time.
        """
        limit = timeout_s or self._ssh.command_timeout_s
        try:
            done = subprocess.run(self.line(*command), input=input or b"", capture_output=True, timeout=limit, check=False)
        except subprocess.TimeoutExpired:
            raise HostError(self.name, f"{shlex.join(command)} did not end within {limit:g} s") from None
        output = Output(done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace"))
        if output.code == CONNECTION_FAILED and not self.alive():
            raise Unreachable(self.name, self._why(output.stderr))
        if check and output.code:
            said = (output.stderr.strip() or output.stdout.strip())[-2000:]
            raise HostError(self.name, f"{shlex.join(command)} ended with status {output.code}: {said or 'it said nothing'}")
        return output

    def line(self, *command: str) -> list[str]:
        """The command line on this machine that runs ``command`` on the host, for pipes; its status 255 is ssh's own."""
        return ["ssh", *self._options(), "-T", self._destination, "--", shlex.join(command)]

    def alive(self) -> bool:
        """Whether the host can be reached now."""
        try:
            done = subprocess.run(
                self.line("true"),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=self._ssh.connect_timeout_s + 5,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return False
        return done.returncode == 0

    def read(self, path: PurePosixPath) -> bytes:
        """A small file. Raises HostError."""
        limit = self._ssh.command_timeout_s
        try:
            done = subprocess.run(
                self.line("cat", str(path)), stdin=subprocess.DEVNULL, capture_output=True, timeout=limit, check=False
            )
        except subprocess.TimeoutExpired:
            raise HostError(self.name, f"reading {path} did not end within {limit:g} s") from None
        if done.returncode:
            raise HostError(self.name, f"{path} cannot be read: {done.stderr.decode(errors='replace').strip()}")
        return done.stdout

    def write(self, path: PurePosixPath, data: bytes, mode: int = 0o600) -> None:
        """Put a small file in place, whole or not at all. What is in it is on no command line. Raises HostError."""
        script = 'umask 077; mkdir -p "$(dirname "$1")" && cat > "$1.part" && chmod "$2" "$1.part" && mv -f "$1.part" "$1"'
        self.run("sh", "-c", script, "write", str(path), f"{mode:o}", input=data)

    @contextlib.contextmanager
    def socket(self, remote: PurePosixPath) -> Iterator[Path]:
        """A Unix socket on this machine that leads to one on the host, for the block's duration. Raises HostError."""
        local = self._control.parent / f"{self.name}-{hashlib.sha256(str(remote).encode()).hexdigest()[:8]}.sock"
        local.unlink(missing_ok=True)
        self.run("test", "-S", str(remote))
        forward = ["-L", f"{local}:{remote}"]
        self._control_command("forward", *forward)
        try:
            yield local
        finally:
            with contextlib.suppress(HostError):  # the connection may be gone, and the forward with it
                self._control_command("cancel", *forward)
            local.unlink(missing_ok=True)

    def close(self) -> None:
        """End the shared connection, if there is one."""
        with contextlib.suppress(HostError):
            self._control_command("exit")

    @property
    def _destination(self) -> str:
        return f"{self.config.user}@{self.config.reached_at}"

    def _options(self) -> list[str]:
        ssh = self._ssh
        options = {
            "BatchMode": "yes",  # never asks for a password
            "ConnectTimeout": ssh.connect_timeout_s,
            "ServerAliveInterval": 5,
            "ServerAliveCountMax": 3,
            "StrictHostKeyChecking": "yes" if ssh.host_keys == "verify" else "accept-new",
            "ControlMaster": "auto",
            "ControlPath": self._control,
            "ControlPersist": 60,
            "StreamLocalBindUnlink": "yes",
            "LogLevel": "ERROR",
        }
        if ssh.known_hosts is not None:
            options |= {"UserKnownHostsFile": ssh.known_hosts, "GlobalKnownHostsFile": "/dev/null"}
        if ssh.key is not None:
            options |= {"IdentityFile": ssh.key, "IdentitiesOnly": "yes"}
        return [*(word for name, value in options.items() for word in ("-o", f"{name}={value}")), "-p", str(self.config.port)]

    def _control_command(self, name: str, *words: str) -> None:
        limit = self._ssh.command_timeout_s
        done = subprocess.run(
            ["ssh", *self._options(), "-O", name, *words, self._destination], capture_output=True, timeout=limit, check=False
        )
        if done.returncode:
            raise HostError(self.name, f"ssh -O {name}: {done.stderr.decode(errors='replace').strip()}")

    def _why(self, said: str) -> str:
        where = f"{self._destination} port {self.config.port}"
        if "host key" in said.lower():
            return (
                f"{where}: {said.strip()}; its key must be in {self._ssh.known_hosts or '~/.ssh/known_hosts'} "
                "(ssh-keyscan, compared with the host's own), or set cluster.ssh.host_keys=accept-new"
            )
        if "permission denied" in said.lower():
            return f"{where}: {said.strip()}; cluster.ssh.key, or a key of the agent, must be in its authorized_keys"
        return f"{where} cannot be reached: {said.strip() or 'no answer'}"


class Hosts:
    """All hosts of a cluster, in order. A context manager: connections end with the block."""

    def __init__(self, cluster: ClusterConfig) -> None:
        if shutil.which("ssh") is None:
            raise ClusterError("there is no program ssh on this machine; install the OpenSSH client")
        # Short: a Unix socket's path may have 107 characters.
        self._directory = Path(tempfile.mkdtemp(prefix="openclaw-ssh-", dir="/tmp"))
        self.cluster = cluster
        self.all = tuple(Host(host, cluster.ssh, self._directory / f"{n}.ctl") for n, host in enumerate(cluster.hosts))

    def __enter__(self) -> Hosts:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[Host]:
        return iter(self.all)

    def close(self) -> None:
        """End every connection."""
        for host in self.all:
            host.close()
        shutil.rmtree(self._directory, ignore_errors=True)

    def named(self, name: str) -> Host:
        """Raises ClusterError naming those that there are."""
        for host in self.all:
            if host.name == name:
                return host
        raise ClusterError(f"no host {name!r} in the cluster; there are: {', '.join(host.name for host in self.all)}")

    @property
    def head(self) -> Host:
        """Where Ray's head and the training service are."""
        return self.named(self.cluster.head.name)

    def with_role(self, *roles: RoleName) -> tuple[Host, ...]:
        """Those that have one of them."""
        return tuple(host for host in self.all if set(roles) & set(host.config.roles))


def on_each(hosts: Sequence[Host], do: Callable[[Host], T]) -> list[T]:
    """Do it on all hosts at once; results in their order. Raises ClusterError with every host's error, one a line."""
    if not hosts:
        return []
    errors: list[str] = []
    results: list[T] = []
    with ThreadPoolExecutor(max_workers=len(hosts)) as pool:
        for future in [pool.submit(do, host) for host in hosts]:
            try:
                results.append(future.result())
            except ClusterError as error:
                errors.append(str(error))
    if errors:
        raise ClusterError("\n".join(errors))
    return results
