"""Exact checkpoints of megatron's DistributedOptimizer over torch's AdamW, which 0.16 gets wrong, partly without an error.

The class is written for the fused Adams of Apex and TransformerEngine, which count steps once. torch's AdamW counts them
in a tensor per parameter, made in the first step. What follows from that:

* Before the first step there is no count and no moment, so there is nothing to load into: ``make_state``.
* The counts are not among the saved tensors, only in the parameter groups, and loading the tensors fails for want of them.
  They are filled in from the groups, which are loaded first.
* The count of the groups is given to all parameters as *one* tensor, which every parameter then increments: after a load
  the bias correction is that of a much later step. Each parameter gets a count of its own.
* Shards are gathered for saving on the device, where a model that fills it has no room, and where the CPU backend has
  none. They are gathered in host memory, over gloo.

Import this module only after ``Accelerator.prepare()``: it imports megatron.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer

METADATA = {"distrib_optim_sharding_type": "fully_reshardable"}
"""How the state is laid out: as the model's own parameters, so that it fits any number of ranks. The one format of 0.16
that works with torch's AdamW; the others keep flat slices, which its torch_dist writer no longer takes."""


def parts(optimizer: Any) -> list[Any]:
    """The optimisers in megatron's chain, or the one that there is."""
    return list(getattr(optimizer, "chained_optimizers", [optimizer]))


def is_distributed(optimizer: Any) -> bool:
    """True where megatron's DistributedOptimizer holds the state."""
    return any(isinstance(part, DistributedOptimizer) for part in parts(optimizer))


def make_state(optimizer: Any) -> None:
    """Give a fresh distributed optimiser the state to load into; others make theirs by themselves."""
    for part in parts(optimizer):
        if isinstance(part, DistributedOptimizer) and not part.optimizer.state:
            part._init_optimizer_states_with_dummy_values()


@contextmanager
def exact(optimizer: Any) -> Iterator[None]:
    """Within it, ``sharded_state_dict`` and ``load_state_dict`` of a distributed optimiser are exact; others are untouched."""
    shares: list[Any] = [part for part in parts(optimizer) if isinstance(part, DistributedOptimizer)]
    for share in shares:  # shadows the methods on these objects alone
        share._set_main_param_and_optimizer_states = partial(_set_with_step, share)
        share.get_parameter_state_dp_zero = partial(_gather_in_host_memory, share)
    try:
        yield
    finally:
        for share in shares:
            del share._set_main_param_and_optimizer_states, share.get_parameter_state_dp_zero
            _separate_steps(share.optimizer)


def _set_with_step(share: DistributedOptimizer, parameter: torch.Tensor, tensors: Mapping[str, torch.Tensor]) -> None:
    group, order = share.model_param_group_index_map[parameter]
    state = share.optimizer.state[share.optimizer.param_groups[group]["params"][order]]
    DistributedOptimizer._set_main_param_and_optimizer_states(share, parameter, {**tensors, "step": state["step"].clone()})


def _gather_in_host_memory(share: DistributedOptimizer, **options: Any) -> Any:
    return DistributedOptimizer.get_parameter_state_dp_zero(share, **options | {"use_gloo_comm": True})


def _separate_steps(optimizer: torch.optim.Optimizer) -> None:
    for state in optimizer.state.values():
        if "step" in state:
            state["step"] = state["step"].clone()
