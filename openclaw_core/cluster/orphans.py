"""Processes that hold memory of a host's NPUs: whose they are, and the end of those that a run has left behind.

A run notes who of its own holds memory (``record``) while it is up. After its containers are gone, what is still there and was
noted is ended, each shown first; everything else belongs to others and is reported, never touched. A pid alone names nobody:
it may have been given away since, so its start time is noted with it, and compared again right before the signal.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from openclaw_core.cluster.docker.containers import Engine
from openclaw_core.cluster.docker.errors import engine_errors
from openclaw_core.cluster.hosts import Host
from openclaw_core.cluster.npu import NPU_SMI, Npus, processes_by_pid, read_npus
from openclaw_core.cluster.specs import RUN_LABEL

CONTAINER = re.compile(r"[0-9a-f]{64}")
START_TIME_FIELD = 22
"""Of /proc/<pid>/stat, counted from 1."""
KILL_WAIT_S = 10
"""How long a process may take to go after SIGKILL: the driver frees its memory first."""

_LOOK = """
printf 'boot %s\\n' "$(cat /proc/sys/kernel/random/boot_id)"
for pid in "$@"; do
    stat=$(cat "/proc/$pid/stat" 2>/dev/null) || continue
    printf 'pid %s\\nstat %s\\n' "$pid" "$stat"
    printf 'command %s\\n' "$(tr '\\000\\n' '  ' 2>/dev/null <"/proc/$pid/cmdline")"
    while read -r line; do printf 'cgroup %s\\n' "$line"; done 2>/dev/null <"/proc/$pid/cgroup"
done
"""

# The name in stat may hold blanks and brackets: what counts comes after the last one. A zombie holds nothing.
_END = """
grace=$1 boot=$2 wait=$3
shift 3
[ "$(cat /proc/sys/kernel/random/boot_id)" = "$boot" ] || exit 0
same() {
    stat=$(cat "/proc/${1%:*}/stat" 2>/dev/null) || return 1
    started=${1#*:}
    set -- ${stat##*") "}
    [ "$1" != Z ] && [ "${20}" = "$started" ]
}
signal() {
    name=$1
    shift
    for each in "$@"; do same "$each" && kill -s "$name" "${each%:*}"; done
}
wait_for() {
    seconds=$1
    shift
    while :; do
        alive=
        for each in "$@"; do same "$each" && alive=1; done
        [ -z "$alive" ] || [ "$seconds" -le 0 ] && return
        seconds=$((seconds - 1))
        sleep 1
    done
}
signal TERM "$@"
wait_for "$grace" "$@"
signal KILL "$@"
wait_for "$wait" "$@"
for each in "$@"; do same "$each" && printf 'left %s\\n' "${each%:*}"; done
exit 0
"""


@dataclass(frozen=True, slots=True)
class Recorded:
    """A process that a run knows as its own, by what nothing else on that host can have."""

    pid: int
    started: int
    """Clock ticks after the boot (/proc/<pid>/stat)."""
    boot: str
    """The boot's id: pids and ticks begin anew with each."""


@dataclass(frozen=True, slots=True)
class Owner:
    """A container, and the run whose label it bears."""

    name: str
    run: str | None


@dataclass(frozen=True, slots=True)
class Process:
    """A process as its host knows it."""

    key: Recorded
    command: str
    """The program and what it runs, without its options: they may hold secrets."""
    container: str | None
    """The container's id."""


@dataclass(frozen=True, slots=True)
class Holder:
    """Who holds memory of which NPUs."""

    pid: int
    name: str
    """As npu-smi has it; may be empty."""
    devices: tuple[int, ...]
    mb: int
    """Over all devices."""
    process: Process | None
    """None where /proc does not have it: it has just ended, or npu-smi shows another host's view."""
    owner: Owner | None
    """None: no container, or one that the engine does not know."""

    @property
    def run(self) -> str | None:
        """The run whose container it is in."""
        return self.owner.run if self.owner else None

    def __str__(self) -> str:
        what = self.process.command if self.process and self.process.command else self.name or "no name"
        return f"pid {self.pid} ({what}), {self.mb:,} MB on NPU {', '.join(map(str, self.devices))}, {self._whose()}"

    def _whose(self) -> str:
        if self.process is None:
            return "not in /proc"
        if self.owner is not None:
            return f"container {self.owner.name}" + (f" of run {self.owner.run}" if self.owner.run else "")
        return f"container {self.process.container[:12]}" if self.process.container else "no container"


@dataclass(frozen=True, slots=True)
class Swept:
    """What ``end_orphans`` found on a host."""

    ended: tuple[Holder, ...]
    left: tuple[Holder, ...]
    """Of this run and still there after SIGKILL."""
    foreign: tuple[Holder, ...]
    """Reported only."""


def find_holders(host: Host, places: Sequence[str] = NPU_SMI) -> tuple[Holder, ...]:
    """Who holds memory of the host's NPUs now; nobody where it has none. Raises HostError."""
    if not host.config.npus:
        return ()
    npus = read_npus(host, places)
    processes = look_at(host, processes_by_pid(npus.chips))
    with Engine(host) as engine:
        return holders(npus, processes, containers_of(engine))


def holders(npus: Npus, processes: Mapping[int, Process], containers: Mapping[str, Owner]) -> tuple[Holder, ...]:
    """Bring together what npu-smi, /proc and the engine say; ``containers`` by id."""
    found: list[Holder] = []
    for pid, shares in sorted(processes_by_pid(npus.chips).items()):
        process = processes.get(pid)
        owner = containers.get(process.container) if process and process.container else None
        devices = tuple(sorted({chip.device for chip, _ in shares}))
        found.append(Holder(pid, shares[0][1].name, devices, sum(share.mb for _, share in shares), process, owner))
    return tuple(found)


def look_at(host: Host, pids: Iterable[int]) -> dict[int, Process]:
    """Start time, command and container of those that are alive. Raises HostError."""
    wanted = [str(pid) for pid in pids]
    return parse_processes(host.run("sh", "-s", "--", *wanted, input=_LOOK.encode()).stdout) if wanted else {}


def parse_processes(text: str) -> dict[int, Process]:
    """Parse what ``look_at`` asks for."""
    boot, found = "", dict[int, dict[str, str]]()
    current: dict[str, str] = {}
    for line in text.splitlines():
        word, _, value = line.partition(" ")
        if word == "boot":
            boot = value
        elif word == "pid":
            current = found.setdefault(int(value), {})
        elif word == "cgroup":
            current["cgroup"] = f"{current.get('cgroup', '')}\n{value}"
        else:
            current[word] = value
    return {pid: _process(pid, boot, parts) for pid, parts in found.items()}


def _process(pid: int, boot: str, parts: Mapping[str, str]) -> Process:
    # After the name, which may hold blanks, the first field is the third.
    started = int(parts["stat"].rpartition(") ")[2].split()[START_TIME_FIELD - 3])
    containers = CONTAINER.findall(parts.get("cgroup", ""))
    return Process(Recorded(pid, started, boot), _shown(parts.get("command", "")), containers[-1] if containers else None)


def _shown(command: str) -> str:
    words: list[str] = []
    for word in command.split():
        if word.startswith("-") and word not in ("-m", "-u"):
            break
        words.append(word)
    return " ".join(words)[:80]


def containers_of(engine: Engine) -> dict[str, Owner]:
    """All containers of a host by id, dead ones among them. Raises EngineError."""
    with engine_errors(engine.host.name, "its containers cannot be listed"):
        return owners(engine.client.api.containers(all=True))


def owners(listed: Iterable[Mapping[str, Any]]) -> dict[str, Owner]:
    """Of the engine's list of containers."""
    return {each["Id"]: Owner(_name(each), (each.get("Labels") or {}).get(RUN_LABEL)) for each in listed}


def _name(container: Mapping[str, Any]) -> str:
    names = container.get("Names") or [container["Id"][:12]]
    return str(names[0]).removeprefix("/")


def record(found: Iterable[Holder], run_id: str) -> tuple[Recorded, ...]:
    """Those in containers of this run: what it may end later. To be asked while they run."""
    return tuple(holder.process.key for holder in found if holder.process is not None and holder.run == run_id)


def to_end(recorded: Iterable[Recorded], found: Iterable[Holder]) -> tuple[Holder, ...]:
    """Those of ``found`` that are the very processes that were recorded."""
    known = set(recorded)
    return tuple(holder for holder in found if holder.process is not None and holder.process.key in known)


def end_orphans(
    host: Host,
    recorded: Iterable[Recorded],
    tell: Callable[[str], None],
    *,
    grace_s: int = 10,
    places: Sequence[str] = NPU_SMI,
) -> Swept:
    """Show who holds memory of the host's NPUs, then end those that were recorded: SIGTERM, SIGKILL after ``grace_s``.

    To be called when the run's containers are gone. Raises HostError.
    """
    found = find_holders(host, places)
    chosen = to_end(recorded, found)
    foreign = tuple(holder for holder in found if holder not in chosen)
    for holder in foreign:
        tell(f"{host.name}: {holder}: not recorded by this run, left alone")
    for holder in chosen:
        tell(f"{host.name}: {holder}: left behind by this run, is ended")
    left = _end(host, chosen, grace_s)
    for holder in left:
        tell(f"{host.name}: {holder}: still there after SIGKILL; look at dmesg of the host")
    return Swept(tuple(holder for holder in chosen if holder not in left), left, foreign)


def _end(host: Host, chosen: Sequence[Holder], grace_s: int) -> tuple[Holder, ...]:
    keys = [holder.process.key for holder in chosen if holder.process is not None]
    if not keys:
        return ()
    words = [str(grace_s), keys[0].boot, str(KILL_WAIT_S), *(f"{key.pid}:{key.started}" for key in keys)]
    output = host.run("sh", "-s", "--", *words, input=_END.encode(), timeout_s=grace_s + KILL_WAIT_S + 30)
    left = {int(line.split()[1]) for line in output.stdout.splitlines() if line.startswith("left ")}
    return tuple(holder for holder in chosen if holder.pid in left)
