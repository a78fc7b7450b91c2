"""Child processes of tests: whatever needs megatron runs in one, because the CPU shim changes torch process-wide."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Sequence
from datetime import timedelta

from torch.distributed import TCPStore

DEADLINE_S = 300


def run_ranks(module: str, arguments: Sequence[object], world_size: int = 1) -> list[str]:
    """Run ``python -m module ARGUMENTS... RANK WORLD_SIZE MASTER_PORT`` once per rank; returns each rank's stdout.

    Raises AssertionError with a rank's stderr if it fails.
    """
    port = free_port()
    ranks = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", module, *map(str, arguments), str(rank), str(world_size), str(port)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(world_size)
    ]
    try:
        outputs = [process.communicate(timeout=DEADLINE_S) for process in ranks]
    finally:
        for process in ranks:
            process.kill()
            process.wait()
    for process, (_, stderr) in zip(ranks, outputs, strict=True):
        assert process.returncode == 0, stderr
    return [stdout for stdout, _ in outputs]


def tcp_store(rank: int | str, world_size: int | str, port: int | str) -> TCPStore:
    """In a child: where the ranks meet, for ``init_parallel``; rank 0 is the server. RANK WORLD_SIZE PORT as they are given."""
    timeout = timedelta(seconds=DEADLINE_S)
    return TCPStore("127.0.0.1", int(port), int(world_size), is_master=int(rank) == 0, timeout=timeout)


def free_port() -> int:
    """A port on loopback that nothing listens on right now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
