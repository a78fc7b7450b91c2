"""What one rank of an SGLang server does for a publish by broadcast: joins the trainer's group, receives, copies.

Usage: python -m benchmarks.receiver HOST PORT GROUP RANK WORLD_SIZE. Then a line of JSON on stdin for each bucket (names,
dtypes, shapes), answered by `received` when its tensors are there, and `{}` for the end of a version, answered by the checksum
of what it consisted of, and by the seconds that the checksum and a copy to where they are served from took.
"""

from __future__ import annotations

import json
import sys
import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import distributed_c10d as c10d

DEADLINE = timedelta(seconds=120)


def join(host: str, port: int, name: str, rank: int, world_size: int) -> Any:
    """The group as SGLang makes it: a store by address, a prefix, a group beside the default one."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # pyright: ignore[reportPrivateImportUsage]
    store, _, _ = next(dist.rendezvous(f"tcp://{host}:{port}", rank, world_size, timeout=DEADLINE))  # pyright: ignore[reportPrivateImportUsage]
    store.set_timeout(DEADLINE)
    group, _ = c10d._new_process_group_helper(
        world_size,
        rank,
        [],
        c10d.Backend("gloo"),
        c10d.PrefixStore(name, store),
        group_name=c10d.GroupName(name),
        timeout=DEADLINE,
    )
    c10d._world.pg_group_ranks[group] = {index: index for index in range(world_size)}  # pyright: ignore[reportArgumentType]
    return group


def receive(bucket: dict[str, Any], group: Any) -> dict[str, Tensor]:
    """The tensors of one bucket."""
    found: dict[str, Tensor] = {}
    works: list[Any] = []
    for name, dtype, shape in zip(bucket["names"], bucket["dtypes"], bucket["shapes"], strict=True):
        found[name] = torch.empty(shape, dtype=getattr(torch, dtype))
        works.append(dist.broadcast(found[name], src=0, group=group, async_op=True))
    for work in works:
        work.wait()
    return found


def main(host: str, port: str, name: str, rank: str, world_size: str) -> None:
    """Serve stdin."""
    from openclaw_core.weights.checksum import checksum

    torch.set_num_threads(2)
    group = join(host, int(port), name, int(rank), int(world_size))
    print("joined", flush=True)
    served: dict[str, Tensor] = {}
    version: dict[str, Tensor] = {}
    for line in sys.stdin:
        bucket = json.loads(line)
        if bucket:
            version |= receive(bucket, group)
            print("received", flush=True)
            continue
        started = time.perf_counter()
        found = checksum(version.items())
        verified = time.perf_counter()
        for tensor_name, tensor in version.items():
            served.setdefault(tensor_name, torch.empty_like(tensor)).copy_(tensor)
        print(json.dumps([found, verified - started, time.perf_counter() - verified]), flush=True)
        version = {}


if __name__ == "__main__":
    main(*sys.argv[1:])
