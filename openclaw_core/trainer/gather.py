"""The whole model from the ranks that share it, under Hugging Face names, one parameter at a time.

Import this module only after ``Accelerator.prepare()``: it imports megatron.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel
from megatron.core.models.gpt import GPTModel
from torch import Tensor

from openclaw_core.weights.names import parameters, whole
from openclaw_core.weights.spec import ModelSpec


def sync_parameters(model: DistributedDataParallel) -> None:
    """Make every rank's parameters those of the last optimiser step. Every rank must call it before they are read.

    With overlapped gathering the distributed optimiser leaves each rank with its own share of the new parameters; the others
    come when the next forward pass needs them.
    """
    if model.ddp_config.overlap_param_gather:
        model.start_param_sync(force_sync=True)


@torch.no_grad()
def hf_weights(gpt: GPTModel, spec: ModelSpec, *, grouped: bool = False) -> Iterator[tuple[str, Tensor]]:
    """(name, tensor) pairs on the first rank of each tensor-parallel group; on its other ranks, which must run it too,
    nothing.

    ``grouped``: see ``weights.names.whole``.
    The tensors may lie on the device and share memory with the model: copy what must outlive the next optimiser step.
    """
    group = cast(dist.ProcessGroup, parallel_state.get_tensor_model_parallel_group())
    size, first = dist.get_world_size(group), dist.get_rank(group) == 0
    own = dict(gpt.named_parameters())
    for parameter in parameters(spec):
        shard = own[parameter.megatron].detach()
        parts = [shard]
        if size > 1:
            shard = shard.contiguous()
            parts = [torch.empty_like(shard) for _ in range(size)]
            dist.all_gather(parts, shard, group=group)
        if first:
            yield from whole(parameter, parts, spec, grouped=grouped)
