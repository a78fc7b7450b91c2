"""What a simulation has left on this machine."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil

from openclaw_core.cluster.simulation.state import SimulationState


def leftovers(state: SimulationState) -> list[str]:
    """Devices, namespaces, mounts, cgroups, processes and files. Looked for by themselves, not with the code under test."""
    return [
        *_named("device", Path("/sys/class/net"), state.bridge),
        *_named("namespace", Path("/run/netns"), state.bridge),
        *(f"mount {line}" for line in Path("/proc/mounts").read_text().splitlines() if str(state.directory) in line),
        *(f"cgroup {path}" for path in Path("/sys/fs/cgroup").glob("**/*") if path.name.startswith(state.bridge)),
        *_processes(state),
        *([f"directory {state.directory}"] if state.directory.exists() else []),
        *_in_other_namespaces(state),
    ]


def _named(what: str, directory: Path, prefix: str) -> Iterator[str]:
    if directory.exists():
        yield from (f"{what} {path.name}" for path in directory.iterdir() if path.name.startswith(prefix))


def _processes(state: SimulationState) -> Iterator[str]:
    for process in psutil.process_iter(["cmdline", "pid"]):
        words = " ".join(process.info["cmdline"] or [])
        if str(state.directory) in words and process.pid != psutil.Process().pid:
            yield f"process {process.pid} {words}"


def _in_other_namespaces(state: SimulationState) -> Iterator[str]:
    """A namespace without a name lives on while a process is in it: its address shows."""
    shown = {
        where: _addresses(pid) for pid in psutil.pids() if (where := _namespace(pid)) not in (None, _namespace(os.getpid()))
    }
    yield from (
        f"address {host.address}" for host in state.hosts if any(f" {host.address}/" in text for text in shown.values())
    )


def _addresses(pid: int) -> str:
    command = ["nsenter", "-t", str(pid), "-n", "ip", "-4", "-o", "addr"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


def _namespace(pid: int) -> Path | None:
    try:
        return Path(f"/proc/{pid}/ns/net").readlink()
    except OSError:
        return None  # it has ended
