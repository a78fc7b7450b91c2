"""Memory that HCCL takes for its communicators."""

from __future__ import annotations

BUFFER_BYTES = 200 * 2**20
"""HCCL_BUFFSIZE (in MB) where it is not set. Each communicator takes it twice, to receive and to send, for itself alone:
https://www.hiascend.com/document/detail/en/canncommercial/850/commlib/hcclug/hcclug_000076.html"""


def communicators(tensor_parallel: int, data_parallel: int, *, trains: bool) -> tuple[str, ...]:
    """Groups of a rank that communicate on the device; one is made when it is first used, and groups of one never.

    ``trains``: the gradient norm has a group of its own. Flags and objects travel over gloo, weights through Ray.
    """
    several = tensor_parallel * data_parallel > 1
    used = {"tensor": tensor_parallel > 1, "data": trains and data_parallel > 1, "norm": trains and several}
    return tuple(name for name, is_used in used.items() if is_used)


def buffer_bytes(count: int) -> int:
    """Of so many communicators."""
    return count * 2 * BUFFER_BYTES
