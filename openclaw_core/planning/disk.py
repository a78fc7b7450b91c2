"""What every host must have besides devices. How large its disk is, is not known here: this is what must be free."""

from __future__ import annotations

import math
from dataclasses import dataclass

from openclaw_core.config.schema import RunConfig
from openclaw_core.config.training import TrainConfig
from openclaw_core.planning.placement import Placement
from openclaw_core.planning.weights import FP32, checkpoint_bytes, hf_parameters, model_bytes, parameter_sizes
from openclaw_core.weights.spec import ModelSpec

_HF_BYTES = 2
"""Models are published and stored in bf16."""


@dataclass(frozen=True, slots=True)
class HostNeeds:
    """Bytes of one host."""

    host: str
    items: dict[str, int | None]
    """On its disk, by what it is; None where the size is not known before it is there."""
    save_memory: int
    """Of the host, at least, while a checkpoint is written."""

    @property
    def total(self) -> int:
        """Of what is known."""
        return sum(size for size in self.items.values() if size is not None)


def kept_checkpoints(train: TrainConfig) -> int:
    """At the end of the run: the last ones, those kept for good, and one that is being written."""
    for_good = train.steps // math.lcm(train.keep_every, train.save_interval) if train.keep_every else 0
    return train.keep_last + for_good + 1


def save_memory(spec: ModelSpec, tensor_parallel: int) -> int:
    """What a rank gathers in host memory of the distributed optimiser's shares: masters and moments of all that it trains."""
    return 3 * FP32 * sum(parameter_sizes(spec, tensor_parallel))


def host_needs(config: RunConfig, spec: ModelSpec, placement: Placement) -> list[HostNeeds]:
    """Every rank writes an equal share of a checkpoint, on its own host; weights are there where a role loads them."""
    trainer = placement.trainer
    gathered = save_memory(spec, trainer.ranks) if config.train.distributed_optimizer else 0
    kept = kept_checkpoints(config.train) * checkpoint_bytes(spec, config.model.dtype)
    hosts: list[HostNeeds] = []
    for host in config.cluster.hosts:
        items: dict[str, int | None] = {"image": None} if config.cluster.containers else {}
        if any(role.ranks_on(host.name) for role in placement.roles):
            items["model (HF)"] = hf_parameters(spec) * _HF_BYTES
        if any(role.ranks_on(host.name) for role in placement.roles if role is not placement.engine):
            items["start weights (torch_dist)"] = model_bytes(spec, config.model.dtype, 1)
        own = config.judge_model == config.model.name
        if "prm" in host.roles and not (own and "model (HF)" in items):
            items["judge's model"] = hf_parameters(spec) * _HF_BYTES if own else None
        if ranks := trainer.ranks_on(host.name):
            items["checkpoints"] = kept * ranks // (trainer.ranks * len(trainer.hosts))
        if host.name == trainer.hosts[0]:
            items["export (HF)"] = hf_parameters(spec) * _HF_BYTES
        hosts.append(HostNeeds(host.name, items, trainer.ranks_on(host.name) * gathered))
    return hosts
