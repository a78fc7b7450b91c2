"""Takes a simulation down: whole, half made, or half gone."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from openclaw_core.cluster.errors import ClusterError
from openclaw_core.cluster.processes import Processes
from openclaw_core.cluster.simulation.engine import end_processes, mounts_below, remove_cgroups, stop_engine, unmount_below
from openclaw_core.cluster.simulation.network import processes_in, remove_network
from openclaw_core.cluster.simulation.state import STATE_FILE, SimulatedHost, SimulationState


def take_down(state: SimulationState) -> None:
    """End, unmount and remove all that ``state`` names. Nothing happens where the directory has no state any more.

    Raises:
        ClusterError: something resists; what is left is still written down, so it can be called again.
    """
    if not (state.directory / STATE_FILE).exists():
        return
    with ThreadPoolExecutor(max_workers=8) as pool:
        list(pool.map(lambda host: _end_host(state, host), state.hosts))
    unmount_below(state.directory)
    remove_network(state)
    for host in state.hosts:
        remove_cgroups(host)
    _remove(state.directory)


def _end_host(state: SimulationState, host: SimulatedHost) -> None:
    stop_engine(state, host)
    Processes(state.processes).stop(host.sshd)
    # Sessions, what they have left running, and whatever was started a moment before its pid would have been recorded.
    end_processes(processes_in(host))


def _remove(directory: Path) -> None:
    """The state last: a removal that is interrupted can be repeated."""
    if mounts := mounts_below(directory):
        raise ClusterError(f"still mounted below {directory}: {', '.join(map(str, mounts))}; umount it and take it down again")
    for entry in directory.iterdir():
        if entry.name != STATE_FILE:
            shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()
    (directory / STATE_FILE).unlink()
    directory.rmdir()
