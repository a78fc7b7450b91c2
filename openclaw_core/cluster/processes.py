"""Processes that a run owns: started in their own session, found and ended by recorded pid and start time, never by name."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil
import structlog

from openclaw_core.cluster.errors import ClusterError
from openclaw_core.config.env import child_environment

log = structlog.get_logger(__name__)

CLOCK_SLACK_S = 1.5
"""psutil derives start times from the boot time, which moves a little when the clock is corrected."""

REAP_S = 10.0


@dataclass(frozen=True, slots=True)
class OwnedProcess:
    """One recorded process. Pid and start time together name it: a pid alone may have been given to another since."""

    name: str
    pid: int
    started: float
    """Unix time, seconds."""
    command: tuple[str, ...]
    log: str

    def handle(self) -> psutil.Process | None:
        """The live process, or None if it has ended, even where its pid is in use again."""
        return live_process(self.pid, self.started)

    def wait(self, timeout_s: float) -> int | None:
        """Wait for its end: the exit code where it is a child of ours, else None. Raises ClusterError at the deadline."""
        try:
            return psutil.Process(self.pid).wait(timeout_s)
        except psutil.NoSuchProcess:
            return None
        except psutil.TimeoutExpired:
            raise ClusterError(
                f"{self.name} (pid {self.pid}) has not ended within {timeout_s:g} s; its log is {self.log}"
            ) from None

    def log_tail(self, lines: int = 30) -> str:
        """The last lines it wrote."""
        file = Path(self.log)
        return "\n".join(file.read_text(errors="replace").splitlines()[-lines:]) if file.exists() else ""


def live_process(pid: int, started: float) -> psutil.Process | None:
    """The process of that pid and start time (Unix time, seconds); None if it has ended."""
    try:
        process = psutil.Process(pid)
        same = abs(process.create_time() - started) < CLOCK_SLACK_S
        return process if same and process.status() != psutil.STATUS_ZOMBIE else None
    except psutil.NoSuchProcess:
        return None


class Processes:
    """The owned processes recorded in one directory, a JSON file each."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def start(self, name: str, command: Sequence[str], *, log_file: Path, env: Mapping[str, str] | None = None) -> OwnedProcess:
        """Start ``command`` in a session of its own, its output appended to ``log_file``. Outlives the caller.

        Raises:
            ClusterError: the command does not exist, or ``name`` is running already.
        """
        if running := self.find(name):
            raise ClusterError(f"{name} is running already, pid {running.pid}")
        program = shutil.which(command[0])
        if program is None:
            raise ClusterError(f"cannot start {name}: there is no program {command[0]!r}")
        self.directory.mkdir(parents=True, exist_ok=True)
        log_file.parent.mkdir(parents=True, exist_ok=True)
        # Its output is for its owner alone: SGLang writes all of its settings there, its key too.
        # posix_spawn rather than Popen: no Python object has to be kept alive for a process that outlives this one.
        pid = os.posix_spawn(
            program,
            list(command),
            child_environment(env or {}),
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, str(log_file), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600),
                (os.POSIX_SPAWN_DUP2, 1, 2),
            ],
            setsid=True,
            setsigmask=[],
            # Python ignores these two, and what is ignored is inherited; the rest may be ignored by whoever started us.
            setsigdef=[signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT, signal.SIGTERM, signal.SIGHUP],
        )
        process = OwnedProcess(name, pid, psutil.Process(pid).create_time(), tuple(command), str(log_file))
        self._write(process)
        log.info("process_started", name=name, pid=pid, log=str(log_file))
        return process

    def find(self, name: str) -> OwnedProcess | None:
        """The recorded process of that name, if it is alive."""
        record = self.recorded(name)
        return record if record is not None and record.handle() is not None else None

    def recorded(self, name: str) -> OwnedProcess | None:
        """The record of that name, whether or not its process is alive; None after ``stop``."""
        return self._read(self._file(name))

    def alive(self) -> list[OwnedProcess]:
        """All recorded processes that are alive."""
        records = (self._read(file) for file in sorted(self.directory.glob("*.json")))
        return [record for record in records if record is not None and record.handle() is not None]

    def stop(self, name: str, grace_s: float = 10) -> bool:
        """SIGTERM, then after ``grace_s`` SIGKILL to what is left of its session. False if it was not running.

        Of one that has died by itself, the children that it left behind are ended: they may hold a device's memory.
        """
        record = self.recorded(name)
        running = record is not None and _end(record, grace_s)
        self._file(name).unlink(missing_ok=True)
        return running

    @contextlib.contextmanager
    def owned(
        self, name: str, command: Sequence[str], *, log_file: Path, env: Mapping[str, str] | None = None, grace_s: float = 10
    ) -> Iterator[OwnedProcess]:
        """A process that ends with the block."""
        process = self.start(name, command, log_file=log_file, env=env)
        try:
            yield process
        finally:
            self.stop(name, grace_s)

    def _file(self, name: str) -> Path:
        return self.directory / f"{name}.json"

    def _write(self, process: OwnedProcess) -> None:
        temporary = self._file(process.name).with_suffix(".tmp")
        temporary.write_text(json.dumps(asdict(process)))
        temporary.replace(self._file(process.name))

    def _read(self, file: Path) -> OwnedProcess | None:
        try:
            fields = json.loads(file.read_text())
        except FileNotFoundError:
            return None
        return OwnedProcess(**{**fields, "command": tuple(fields["command"])})


def _end(record: OwnedProcess, grace_s: float) -> bool:
    """False if it was not running."""
    leader = record.handle()
    if leader is None:
        _end_orphans(record)
        return False
    # Taken before the signal: once the leader is gone, its children can no longer be found through it.
    family = _session(leader)
    with contextlib.suppress(psutil.NoSuchProcess):
        leader.terminate()
    _, slow = psutil.wait_procs([leader], timeout=grace_s)
    _kill(record, {*family, *(_session(leader) if slow else ())})
    log.info("process_ended", name=record.name, pid=record.pid, killed=bool(slow))
    return True


def _end_orphans(record: OwnedProcess) -> None:
    """What is left of the session of a leader that has died. Its id is given to nobody while the session has a member."""
    with contextlib.suppress(psutil.NoSuchProcess):
        if abs(psutil.Process(record.pid).create_time() - record.started) >= CLOCK_SLACK_S:
            return  # so nothing was left of it, and the pid is another's now
    _reap(record)
    orphans = {process for process in _members(record.pid) if process.pid != record.pid}
    if orphans:
        _kill(record, orphans)
        log.warning("orphans_ended", name=record.name, pids=sorted(process.pid for process in orphans))


def _reap(record: OwnedProcess) -> None:
    """Take the exit status of a dead child: a zombie when its main thread has ended, it has one when its last thread has."""
    end = time.monotonic() + REAP_S
    with contextlib.suppress(ChildProcessError):  # it need not be a child of this process
        while os.waitpid(record.pid, os.WNOHANG) == (0, 0) and time.monotonic() < end:
            time.sleep(0.01)


def _kill(record: OwnedProcess, processes: set[psutil.Process]) -> None:
    for process in processes:
        # psutil compares start times before it signals, so a pid that was reused meanwhile is left alone.
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    _, left = psutil.wait_procs(processes, timeout=10)
    if left:
        raise ClusterError(f"{record.name}: pids {[process.pid for process in left]} have not ended after SIGKILL")


def _session(leader: psutil.Process) -> set[psutil.Process]:
    """The leader, its descendants, and whoever else lives in its session."""
    found = {leader, *_members(leader.pid)}
    with contextlib.suppress(psutil.NoSuchProcess):
        found.update(leader.children(recursive=True))
    return found


def _members(session: int) -> Iterator[psutil.Process]:
    for process in psutil.process_iter():
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if os.getsid(process.pid) == session:
                yield process
