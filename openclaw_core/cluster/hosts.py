"""The hosts of a run over SSH: commands, small files, and a way to their Docker engine.

OpenSSH's own client does it, so that agents, keys on hardware, jump hosts and ~/.ssh/config work as the operator is used to.
One connection a host is opened and shared (ControlMaster); it is closed with ``Hosts``.
"""

from __future__ import annotations

import contextlib
import itertools
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
IDLE_S = 60
"""After this long without a command the shared connection ends, also where nobody has closed it."""

# A connection that breaks looks to `cat` like the end of the file: hence the length.
WRITE = """
umask 077
part=$1.part
mkdir -p "$(dirname "$1")" && cat > "$part" || exit
came=$(wc -c < "$part")
[ "$came" -eq "$3" ] || { echo "only $came of $3 bytes of $1 came through" >&2; rm -f "$part"; exit 1; }
chmod "$2" "$part" && mv -f "$part" "$1"
"""


_numbers = itertools.count()


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
        done = self._ended(self.line(*command), shlex.join(command), timeout_s or self._ssh.command_timeout_s, input or b"")
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

    def terminal(self, *command: str) -> list[str]:
        """As ``line``, with a terminal, for a person."""
        return ["ssh", *self._options(), "-t", self._destination, "--", shlex.join(command)]

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
        done = self._ended(self.line("cat", str(path)), f"reading {path}", self._ssh.command_timeout_s, b"")
        if done.returncode == CONNECTION_FAILED and not self.alive():
            raise Unreachable(self.name, self._why(done.stderr.decode(errors="replace")))
        if done.returncode:
            raise HostError(self.name, f"{path} cannot be read: {done.stderr.decode(errors='replace').strip()}")
        return done.stdout

    def write(self, path: PurePosixPath, data: bytes, mode: int = 0o600) -> None:
        """Put a small file in place, whole or not at all. What is in it is on no command line. Raises HostError."""
        self.run("sh", "-c", WRITE, "write", str(path), f"{mode:o}", str(len(data)), input=data)

    @contextlib.contextmanager
    def socket(self, remote: PurePosixPath) -> Iterator[Path]:
        """A Unix socket on this machine that leads to one on the host, for the block's duration. Raises HostError."""
        what = f"the Unix socket {remote}"
        if self.run("test", "-S", str(remote), check=False).code:
            raise HostError(self.name, f"{what} does not exist; is its server running, and may {self.config.user} see it?")
        # Each its own: two blocks may lead to the same socket at once.
        local = self._control.parent / f"{self.name}-{next(_numbers)}.sock"
        forward = ["-L", f"{local}:{remote}"]
        with self._kept_open():
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
    def _known_as(self) -> str:
        """Its entry in known_hosts."""
        at, port = self.config.reached_at, self.config.port
        return at if port == 22 else f"'[{at}]:{port}'"

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
            "ControlPersist": IDLE_S,
            "StreamLocalBindUnlink": "yes",
            "LogLevel": "ERROR",
        }
        if ssh.known_hosts is not None:
            options |= {"UserKnownHostsFile": _quoted(ssh.known_hosts), "GlobalKnownHostsFile": "/dev/null"}
        if ssh.key is not None:
            options |= {"IdentityFile": _quoted(ssh.key), "IdentitiesOnly": "yes"}
        return [*(word for name, value in options.items() for word in ("-o", f"{name}={value}")), "-p", str(self.config.port)]

    @contextlib.contextmanager
    def _kept_open(self) -> Iterator[None]:
        """The shared connection does not count as idle: a forward that nothing uses would not count as use.

        The command on the host ends with this process too, however that ends.
        """
        with subprocess.Popen(
            self.line("cat"), stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ) as holder:
            try:
                yield
            finally:
                holder.kill()

    def _ended(self, line: list[str], what: str, limit_s: float, input: bytes) -> subprocess.CompletedProcess[bytes]:
        try:
            return subprocess.run(line, input=input, capture_output=True, timeout=limit_s, check=False)
        except subprocess.TimeoutExpired:
            if self.alive():
                raise HostError(self.name, f"{what} did not end within {limit_s:g} s; it may be running there still") from None
            raise Unreachable(self.name, f"{what} did not end within {limit_s:g} s, and the host does not answer") from None

    def _control_command(self, name: str, *words: str) -> None:
        line = ["ssh", *self._options(), "-O", name, *words, self._destination]
        done = self._ended(line, f"ssh -O {name}", self._ssh.command_timeout_s, b"")
        if done.returncode:
            raise HostError(self.name, f"ssh -O {name}: {done.stderr.decode(errors='replace').strip()}")

    def _why(self, said: str) -> str:
        where = f"{self._destination} port {self.config.port}"
        known = self._ssh.known_hosts or "~/.ssh/known_hosts"
        if "identification has changed" in said.lower():
            return (
                f"{where}: its host key is not the one in {known}, so it may be another machine; where the host was set up "
                f"anew, remove the old key (ssh-keygen -R {self._known_as} -f {known}) and add the new one, compared with the "
                "host's own"
            )
        if "host key" in said.lower():
            return (
                f"{where}: {said.strip()}; its key must be in {known} "
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


def _quoted(file: Path) -> str:
    """As the value of an option of ssh, which splits at spaces and replaces what follows a '%'."""
    return '"' + str(file).replace("%", "%%") + '"'
