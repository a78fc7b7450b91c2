"""The whole model from the ranks that share it, under Hugging Face names, one parameter at a time.

Import this module only after ``Accelerator.prepare()``: it imports megatron.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.models.gpt import GPTModel
from torch import Tensor

from openclaw_core.weights.names import parameters, whole
from openclaw_core.weights.spec import ModelSpec


@torch.no_grad()
def hf_weights(gpt: GPTModel, spec: ModelSpec) -> Iterator[tuple[str, Tensor]]:
    """(name, CPU tensor) pairs on the first rank of each tensor-parallel group; on its other ranks, which must run it too,
    nothing. The tensors share no memory with the model.
    """
    group = cast(dist.ProcessGroup, parallel_state.get_tensor_model_parallel_group())
    size, first = dist.get_world_size(group), dist.get_rank(group) == 0
    own = dict(gpt.named_parameters())
    for parameter in parameters(spec):
        shard = own[parameter.megatron].detach().contiguous()
        parts = [torch.empty_like(shard) for _ in range(size)]
        dist.all_gather(parts, shard, group=group)
        if first:
            yield from whole(parameter, [part.cpu() for part in parts], spec)
