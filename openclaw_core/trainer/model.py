"""The policy as a megatron GPTModel: parallel state, construction, and the forward pass up to the final norm.

Import this module only after ``Accelerator.prepare()``: it imports megatron.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import lru_cache
from typing import Any, cast

import torch
import torch.distributed as dist
from jaxtyping import Bool, Float, Int
from megatron.core import parallel_state
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.tensor_parallel import copy_to_tensor_model_parallel_region, gather_from_sequence_parallel_region
from megatron.core.transformer import TransformerConfig
from megatron.core.transformer.module import Float16Module
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules
from torch import Tensor

from openclaw_core.trainer.accelerator import Accelerator
from openclaw_core.weights.errors import ModelError
from openclaw_core.weights.spec import Dtype, ModelSpec

__all__ = ["Dtype", "ModelError", "ModelSpec", "build_gpt", "hidden_states", "init_parallel", "output_weight", "unwrap"]

TORCH_DTYPES: dict[Dtype, torch.dtype] = {"bf16": torch.bfloat16, "fp32": torch.float32}


def init_parallel(
    accelerator: Accelerator,
    *,
    tensor_parallel: int = 1,
    rank: int = 0,
    world_size: int = 1,
    master: tuple[str, int] | None = None,
    seed: int = 1,
    timeout_s: float = 600,
) -> None:
    """Join the process group of ``world_size`` ranks, split it into tensor- and data-parallel groups, and seed.

    ``master`` is (address, port) of rank 0; a group of one needs none and opens no port. Consecutive ranks form one
    tensor-parallel group. ``timeout_s`` bounds joining and every collective.
    """
    if world_size % tensor_parallel:
        raise ModelError(f"tensor_parallel={tensor_parallel} does not divide world_size={world_size}")
    timeout = timedelta(seconds=timeout_s)
    if master is None:
        if world_size != 1:
            raise ModelError(f"world_size={world_size} needs the address and port of rank 0")
        store = dist.HashStore()  # pyright: ignore[reportPrivateImportUsage]
        dist.init_process_group(accelerator.dist_backend, store=store, rank=0, world_size=1, timeout=timeout)
    else:
        url = f"tcp://{master[0]}:{master[1]}"
        dist.init_process_group(accelerator.dist_backend, init_method=url, rank=rank, world_size=world_size, timeout=timeout)
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=tensor_parallel, distributed_timeout_minutes=max(1, round(timeout_s / 60))
    )
    accelerator.seed(seed)


def build_gpt(spec: ModelSpec, dtype: Dtype, *, sequence_parallel: bool = False) -> tuple[TransformerConfig, GPTModel]:
    """This rank's shard of the model, in ``dtype``, with memory allocated and **not initialised**: load weights next."""
    tensor_parallel = parallel_state.get_tensor_model_parallel_world_size()
    spec.check_tensor_parallel(tensor_parallel)
    config = TransformerConfig(
        num_layers=spec.layers,
        hidden_size=spec.hidden,
        ffn_hidden_size=spec.ffn,
        num_attention_heads=spec.heads,
        num_query_groups=spec.kv_heads,
        kv_channels=spec.head_dim,
        normalization="RMSNorm",
        layernorm_epsilon=spec.rms_norm_eps,
        qk_layernorm=spec.qk_norm,
        gated_linear_unit=True,
        activation_func=torch.nn.functional.silu,
        add_bias_linear=False,
        add_qkv_bias=False,
        # The cheap exact forms of the loss hold only without dropout.
        hidden_dropout=0.0,
        attention_dropout=0.0,
        tensor_model_parallel_size=tensor_parallel,
        sequence_parallel=sequence_parallel,
        params_dtype=TORCH_DTYPES[dtype],
        pipeline_dtype=TORCH_DTYPES[dtype],
        bf16=dtype == "bf16",
        # The loss is already a mean over the global batch: megatron must divide by nothing.
        calculate_per_token_loss=True,
        use_cpu_initialization=True,
        perform_initialization=False,
        # Fused kernels of Apex and TransformerEngine.
        gradient_accumulation_fusion=False,
        masked_softmax_fusion=False,
        persist_layer_norm=False,
        bias_dropout_fusion=False,
        apply_rope_fusion=False,
    )
    gpt = GPTModel(
        config=config,
        transformer_layer_spec=cast(Any, _block_spec(spec)),
        vocab_size=spec.padded_vocab_size,
        max_sequence_length=spec.max_positions,
        position_embedding_type="rope",
        rotary_base=cast(int, spec.rope_theta),
        share_embeddings_and_output_weights=spec.tied,
    )
    # torch's norms are made in fp32 whatever params_dtype says.
    return config, gpt.to(TORCH_DTYPES[dtype])


def hidden_states(model: torch.nn.Module, ids: Int[Tensor, "b s"]) -> Float[Tensor, "s b h"]:
    """Final hidden states, after the last norm and before the output layer, in the model's dtype.

    ``model`` is a GPTModel or its wrapping in Float16Module and DistributedDataParallel; ids are padded on the right
    only. The result is whole on every tensor-parallel rank, and its gradient is summed over the ranks, as an output
    head that works on a shard of the vocabulary needs.
    """
    gpt = unwrap(model)
    batch, length = ids.shape
    positions = torch.arange(length, device=ids.device).expand(batch, -1)
    mask = _causal_mask(length, ids.device)
    options = {"fp32_output": False} if _has_float16_module(model) else {}
    with _without_output_layer(gpt):
        hidden = model(ids, positions, mask, **options)
    if gpt.config.sequence_parallel:
        return gather_from_sequence_parallel_region(hidden)
    return copy_to_tensor_model_parallel_region(hidden)


def output_weight(gpt: GPTModel) -> Float[Tensor, "v h"]:
    """This rank's rows of the output matrix, padding rows included: the embedding where the model ties the two."""
    weight = gpt.shared_embedding_or_output_weight() if gpt.share_embeddings_and_output_weights else gpt.output_layer.weight
    return cast(Tensor, weight)


def unwrap(model: torch.nn.Module) -> GPTModel:
    """The GPTModel inside Float16Module and DistributedDataParallel."""
    while not isinstance(model, GPTModel):
        model = cast(torch.nn.Module, model.module)
    return model


class RMSNorm(torch.nn.RMSNorm):
    """torch's RMSNorm with the mark that makes megatron sum its weight's gradient under sequence parallelism.

    Megatron's own wrapper refuses sequence parallelism; without the mark training runs, with wrong gradients.
    """

    def __init__(self, config: TransformerConfig, hidden_size: int, eps: float, **_unused: Any) -> None:
        super().__init__(hidden_size, eps=eps)
        cast(Any, self.weight).sequence_parallel = config.sequence_parallel


def _block_spec(spec: ModelSpec) -> TransformerBlockSubmodules:
    layer = get_gpt_layer_local_spec(qk_layernorm=spec.qk_norm, normalization="RMSNorm")
    parts = cast(Any, layer.submodules)
    parts.input_layernorm = parts.pre_mlp_layernorm = RMSNorm
    if spec.qk_norm:
        attention = parts.self_attention.submodules
        attention.q_layernorm = attention.k_layernorm = RMSNorm
    return TransformerBlockSubmodules(layer_specs=[layer] * spec.layers, layer_norm=cast(Any, RMSNorm))


@lru_cache(maxsize=16)
def _causal_mask(length: int, device: torch.device) -> Bool[Tensor, "1 1 s s"]:
    """True where attention is forbidden."""
    return torch.ones(1, 1, length, length, dtype=torch.bool, device=device).triu(1)


@contextmanager
def _without_output_layer(gpt: GPTModel) -> Iterator[None]:
    """GPTModel returns the decoder's output; the decoder keeps its own flag, and with it the final norm."""
    gpt.post_process = False
    try:
        yield
    finally:
        gpt.post_process = True


def _has_float16_module(model: torch.nn.Module) -> bool:
    while not isinstance(model, GPTModel):
        if isinstance(model, Float16Module):
            return True
        model = cast(torch.nn.Module, model.module)
    return False
