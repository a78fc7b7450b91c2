"""The receiving side of a broadcast group, joined as SGLang's ``init_weights_update_group`` joins it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import distributed_c10d as c10d
from torch.distributed.rendezvous import rendezvous

_TIMEOUT = timedelta(seconds=60)


class Groups:
    """By name. Every method blocks: run them in a thread."""

    def __init__(self) -> None:
        self._groups: dict[str, dist.ProcessGroup] = {}

    def join(self, request: dict[str, Any]) -> None:
        """Until all are there. Raises RuntimeError or ValueError."""
        if not dist.is_initialized():
            # The server's own ranks are a group already; here it is one rank.
            dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # pyright: ignore[reportPrivateImportUsage]
        name, size, rank = request["group_name"], request["world_size"], request["rank_offset"]
        address = f"tcp://{request['master_address']}:{request['master_port']}"
        store, _, _ = next(rendezvous(address, rank, size, timeout=_TIMEOUT))
        store.set_timeout(_TIMEOUT)
        group, _ = c10d._new_process_group_helper(
            size,
            rank,
            [],
            c10d.Backend(request["backend"]),
            c10d.PrefixStore(name, store),
            group_name=name,
            timeout=_TIMEOUT,
        )
        assert isinstance(group, dist.ProcessGroup)
        c10d._world.pg_group_ranks[group] = {index: index for index in range(size)}
        self._groups[name] = group

    def receive(self, request: dict[str, Any]) -> dict[str, Tensor]:
        """One bucket, in the order of its names. Raises KeyError without the group, RuntimeError where the sender is gone."""
        group, received, works = self._groups[request["group_name"]], {}, []
        for name, dtype, shape in zip(request["names"], request["dtypes"], request["shapes"], strict=True):
            received[name] = torch.empty(shape, dtype=getattr(torch, dtype))
            works.append(dist.broadcast(received[name], src=0, group=group, async_op=True))
        for work in works:
            assert work is not None
            work.wait()
        return received

    def leave(self, name: str) -> bool:
        """False where it was not in one."""
        group = self._groups.pop(name, None)
        if group is not None:
            dist.destroy_process_group(group)
        return group is not None
