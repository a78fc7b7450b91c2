"""What trainer and scorer ranks build alike: the model with the start weights, and its output head.

Import this module only after ``Accelerator.prepare()``: it imports megatron.
"""

from __future__ import annotations

from pathlib import Path
from typing import cast

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.models.gpt import GPTModel
from megatron.core.transformer import TransformerConfig
from megatron.core.transformer.module import Float16Module

from openclaw_core.config.schema import RunConfig
from openclaw_core.trainer import checkpoint
from openclaw_core.trainer.accelerator import Accelerator
from openclaw_core.trainer.heads import ResponseHead
from openclaw_core.trainer.model import build_gpt
from openclaw_core.weights.spec import ModelSpec


def build_model(
    spec: ModelSpec, config: RunConfig, accelerator: Accelerator, start: Path
) -> tuple[TransformerConfig, GPTModel, torch.nn.Module]:
    """(megatron's configuration, this rank's shard with the weights of ``start``, the module to run).

    Megatron's own bf16 mode, or plain fp32.
    """
    train = config.train
    tensor_parallel = parallel_state.get_tensor_model_parallel_world_size()
    transformer, gpt = build_gpt(
        spec,
        config.model.dtype,
        sequence_parallel=train.sequence_parallel and tensor_parallel > 1,
        recompute=train.recompute,
        accelerator=accelerator,
    )
    checkpoint.load(start, spec, gpt)
    return transformer, gpt, Float16Module(transformer, gpt) if config.model.dtype == "bf16" else gpt


def response_head(spec: ModelSpec, config: RunConfig) -> ResponseHead:
    """The head over the ranks that share the model."""
    group = cast(dist.ProcessGroup, parallel_state.get_tensor_model_parallel_group())
    return ResponseHead(spec, config.loss.head_chunk, group if group.size() > 1 else None)
