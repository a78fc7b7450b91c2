"""One rank's process: the process group it joins, and a note of what it is doing for whoever watches it.

The base of the trainer's and the scorer's Ray actors. Such a process applies the CPU shim (which changes torch
process-wide), so nothing else lives in it, and what imports megatron is imported only after ``join`` has prepared it.
"""

from __future__ import annotations

import socket
import time
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

import ray
import structlog
import torch

from openclaw_core.config.schema import RunConfig
from openclaw_core.log import configure_logging
from openclaw_core.trainer import accelerator as accelerators
from openclaw_core.trainer.parts import host_name
from openclaw_core.weights.spec import ModelSpec

log = structlog.get_logger(__name__)


class Rank(ABC):
    """See the module's docstring. Calls come one at a time and on every rank of the group alike.

    But for those of a concurrency group: "watch" is answered whatever the rank is doing; so is "publish", in several threads,
    where engines receive weights at their own pace between two calls.
    """

    def __init__(self, config_json: str, hf_dir: str, rank: int, world_size: int) -> None:
        configure_logging()
        self.config = RunConfig.model_validate_json(config_json)
        self.spec = ModelSpec.from_hf(Path(hf_dir))
        self.rank, self.world_size = rank, world_size
        self.accelerator = accelerators.detect()
        self.store: Any = None
        self._doing, self._since = "start", time.monotonic()

    @ray.method(concurrency_group="watch")
    def where(self) -> tuple[str, float]:
        """What this rank is doing, and for how many seconds; answered whatever it is doing."""
        return self._doing, time.monotonic() - self._since

    def host(self) -> str:
        """The name under which this rank's host keeps its parts of checkpoints."""
        return host_name(self.config)

    def open_store(self) -> tuple[str, int]:
        """Rank 0: start the group's store on a port that the system picks; returns the address to join."""
        host = ray.util.get_node_ip_address()
        listener = socket.create_server((host, 0))
        port = listener.getsockname()[1]
        self.store = self._tcp_store(host, port, listener=listener.detach())
        return host, port

    def join(self, address: tuple[str, int] | None, tensor_parallel: int, threads: int) -> None:
        """Prepare the process for its device and join the group at ``address``; a group of one needs none."""
        self.at("join")
        torch.set_num_threads(threads)
        self.accelerator.prepare(
            accelerators.megatron_arguments(self.config, self.spec, tensor_parallel=tensor_parallel, world_size=self.world_size)
        )
        from openclaw_core.trainer.model import init_parallel

        if address is not None and self.store is None:
            self.store = self._tcp_store(*address)
        init_parallel(
            self.accelerator,
            tensor_parallel=tensor_parallel,
            rank=self.rank,
            world_size=self.world_size,
            store=self.store,
            seed=self.config.train.seed,
            timeout_s=self.config.train.collective_s,
        )
        self.at("ready")

    @abstractmethod
    def build(self, hf_dir: str, base_checkpoint: str) -> None:
        """Make the model, with the start model's weights, and what works with it."""

    def at(self, doing: str) -> None:
        """Note what comes next."""
        self._doing, self._since = doing, time.monotonic()

    def _tcp_store(self, host: str, port: int, listener: int | None = None) -> Any:
        from datetime import timedelta

        from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]

        return TCPStore(
            host,
            port,
            self.world_size,
            is_master=listener is not None,
            timeout=timedelta(seconds=self.config.train.collective_s),
            wait_for_workers=False,
            master_listen_fd=listener,
        )
