"""The trainer's side of the groups over which engines on other hosts receive weights. It lives on the first rank.

The members join as SGLang's ``init_weights_update_group`` does: a TCP store of which rank 0 is the server, keys under the
group's name, and torch's own helper for a group beside the default one. A group is kept until it is closed or fails: making
one anew for every publish exhausts HCCL's resources.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, cast

import structlog
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from openclaw_core.weights.errors import PublishError

log = structlog.get_logger(__name__)

_MARGIN_S = 5.0
"""After torch's own deadline, whose error says more."""


@dataclass
class _Group:
    name: str
    world_size: int
    backend: str
    address: tuple[str, int]
    store: Any
    joined: Future[dist.ProcessGroup] = field(default_factory=Future)
    sending: threading.Lock = field(default_factory=threading.Lock)
    closed: bool = False

    @property
    def failed(self) -> bool:
        """Its members did not join. It is kept for its error until it is opened again."""
        return self.joined.done() and self.joined.exception() is not None

    @property
    def peers(self) -> str:
        return f"{self.world_size - 1} peer{'s' if self.world_size > 2 else ''}"


class Sender:
    """See the module's docstring. Its methods may be called from several threads; those of one group wait for each other.

    ``host``: where the others reach this process. ``device``: torch's name of what the collectives take tensors from.
    ``deadline_s``: of joining, and of one bucket.
    """

    def __init__(self, host: str, device: str, deadline_s: float) -> None:
        self._host, self._device, self._deadline_s = host, device, deadline_s
        self._groups: dict[str, _Group] = {}
        self._lock = threading.Lock()

    def open(self, name: str, world_size: int, backend: str) -> tuple[str, int]:
        """Make a group and begin to wait for its members, or keep the one that lives; returns its store's address.

        Raises PublishError where there would be no member or no such backend.
        """
        if not name or world_size < 2:
            raise PublishError(f"group {name!r} of {world_size}: it needs a name, and a receiver besides the trainer")
        if not dist.is_backend_available(backend):
            raise PublishError(f"group {name!r}: this trainer's torch has no backend {backend!r}")
        with self._lock:
            group = self._groups.get(name)
            if group and (group.world_size, group.backend) == (world_size, backend) and not group.failed:
                return group.address
            if group:
                self._forget(group)
            group = self._groups[name] = self._new_group(name, world_size, backend)
        threading.Thread(target=self._join, args=(group,), name=f"join {name}", daemon=True).start()
        return group.address

    def joined(self, name: str) -> None:
        """Wait until all members of a group have joined. Raises PublishError."""
        self._joined(self._group(name))

    def send(self, name: str, tensors: Sequence[torch.Tensor], what: str) -> None:
        """Broadcast tensors in order. ``what`` they are, for the error. Raises PublishError: the group is closed then."""
        group = self._group(name)
        processes = self._joined(group)
        with group.sending:
            started = time.monotonic()
            try:
                works: list[Any] = []
                for tensor in tensors:
                    own = tensor if self._device == "cpu" else tensor.to(self._device)
                    works.append((dist.broadcast(own, src=0, group=processes, async_op=True), own))
                for work, _ in works:
                    left = max(0.1, started + self._deadline_s - time.monotonic())
                    work.wait(timedelta(seconds=left))
            except (RuntimeError, ValueError) as error:
                with self._lock:
                    self._forget(group)
                raise PublishError(
                    f"group {name!r}: {what} did not reach {group.peers} within train.collective_s={self._deadline_s:g} "
                    f"({error}); the group is closed, open it again"
                ) from None

    def close(self, name: str) -> None:
        """Leave a group, where there is one."""
        with self._lock:
            group = self._groups.get(name)
            if group:
                self._forget(group)

    def _group(self, name: str) -> _Group:
        with self._lock:
            if name not in self._groups:
                raise PublishError(f"there is no group {name!r}; open are: {', '.join(map(repr, self._groups)) or 'none'}")
            return self._groups[name]

    def _new_group(self, name: str, world_size: int, backend: str) -> _Group:
        # The listener is handed on: nobody can take the port in between.
        listener = socket.create_server((self._host, 0))
        port = listener.getsockname()[1]
        store = dist.TCPStore(  # pyright: ignore[reportPrivateImportUsage]
            self._host,
            port,
            world_size,
            is_master=True,
            timeout=timedelta(seconds=self._deadline_s),
            wait_for_workers=False,
            master_listen_fd=listener.detach(),
        )
        return _Group(name, world_size, backend, (self._host, port), store)

    def _join(self, group: _Group) -> None:
        """In a thread of its own: it takes until the last member is there."""
        try:
            processes = self._meet(group)
        except (RuntimeError, ValueError) as error:
            group.joined.set_exception(
                PublishError(
                    f"group {group.name!r}: {group.peers} did not all join at {group.address[0]}:{group.address[1]} within "
                    f"train.collective_s={self._deadline_s:g} ({error})"
                )
            )
            return
        with self._lock:
            if group.closed:
                dist.destroy_process_group(processes)
                group.joined.set_exception(PublishError(f"group {group.name!r} was closed while its members joined"))
                return
            group.joined.set_result(processes)
        log.info("publish_group_joined", group=group.name, world_size=group.world_size, backend=group.backend)

    def _meet(self, group: _Group) -> dist.ProcessGroup:
        processes, _ = c10d._new_process_group_helper(
            group.world_size,
            0,
            [],
            c10d.Backend(group.backend),
            c10d.PrefixStore(group.name, group.store),
            group_name=cast("c10d.GroupName", group.name),  # torch 2.8 has no such name
            timeout=timedelta(seconds=self._deadline_s),
        )
        assert isinstance(processes, dist.ProcessGroup)
        c10d._world.pg_group_ranks[processes] = {rank: rank for rank in range(group.world_size)}
        return processes

    def _joined(self, group: _Group) -> dist.ProcessGroup:
        try:
            return group.joined.result(self._deadline_s + _MARGIN_S)
        except TimeoutError:
            raise PublishError(
                f"group {group.name!r}: {group.peers} did not all join within train.collective_s={self._deadline_s:g}"
            ) from None

    def _forget(self, group: _Group) -> None:
        """Under the lock. A group that is still waiting for members is left as soon as they are there, or by its deadline."""
        group.closed = True
        if self._groups.get(group.name) is group:
            del self._groups[group.name]
        if group.joined.done() and not group.failed:
            dist.destroy_process_group(group.joined.result())
