"""Child processes of tests: whatever needs megatron runs in one, because the CPU shim changes torch process-wide."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from datetime import timedelta

from torch.distributed import TCPStore

DEADLINE_S = 300


def run_ranks(module: str, arguments: Sequence[object], world_size: int = 1) -> list[str]:
    """Run ``python -m module ARGUMENTS... RANK WORLD_SIZE STORE_PORT`` once per rank; returns each rank's stdout.

    Raises AssertionError with a rank's stderr if it fails.
    """
    store = open_store(world_size)
    ranks = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", module, *map(str, arguments), str(rank), str(world_size), str(store.port)],
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


def open_store(world_size: int) -> TCPStore:
    """Where ranks meet, in the process that starts them: on a port that the system picks, and that nobody takes in between."""
    return TCPStore("127.0.0.1", 0, world_size, is_master=True, wait_for_workers=False)


def tcp_store(world_size: int | str, port: int | str) -> TCPStore:
    """In a rank: the store of ``open_store``, for ``init_parallel``. WORLD_SIZE and STORE_PORT as they are given."""
    return TCPStore("127.0.0.1", int(port), int(world_size), is_master=False, timeout=timedelta(seconds=DEADLINE_S))
