"""The policy as a megatron GPTModel: parallel state, construction, and the forward pass up to the final norm.

Import this module only after ``Accelerator.prepare()``: it imports megatron.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import lru_cache
from typing import Any, Literal, cast

import torch
import torch.distributed as dist
from jaxtyping import Bool, Float, Int
from megatron.core import parallel_state
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.tensor_parallel import (
    ColumnParallelLinear,
    RowParallelLinear,
    VocabParallelEmbedding,
    copy_to_tensor_model_parallel_region,
    gather_from_sequence_parallel_region,
    set_tensor_model_parallel_attributes,
)
from megatron.core.transformer import TransformerConfig
from megatron.core.transformer.module import Float16Module
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules
from torch import Tensor

from openclaw_core.trainer.accelerator import CPU, Accelerator, recompute_options
from openclaw_core.weights.errors import ModelError
from openclaw_core.weights.spec import Dtype, ModelSpec

__all__ = [
    "Dtype",
    "ModelError",
    "ModelSpec",
    "build_gpt",
    "hidden_states",
    "init_parallel",
    "object_group",
    "output_weight",
    "unwrap",
]

TORCH_DTYPES: dict[Dtype, torch.dtype] = {"bf16": torch.bfloat16, "fp32": torch.float32}

_object_group: dist.ProcessGroup | None = None


def init_parallel(
    accelerator: Accelerator,
    *,
    tensor_parallel: int = 1,
    rank: int = 0,
    world_size: int = 1,
    store: dist.Store | None = None,  # pyright: ignore[reportPrivateImportUsage]
    seed: int = 1,
    timeout_s: float = 600,
) -> None:
    """Join the process group of ``world_size`` ranks, split it into tensor- and data-parallel groups, and seed.

    The ranks meet at ``store`` (a TCPStore of which rank 0 is the server); a group of one needs none and opens no port.
    Consecutive ranks form one tensor-parallel group. ``timeout_s`` bounds joining and every collective.

    Raises ModelError.
    """
    global _object_group
    if world_size % tensor_parallel:
        raise ModelError(f"tensor_parallel={tensor_parallel} does not divide world_size={world_size}")
    if store is None:
        if world_size != 1:
            raise ModelError(f"world_size={world_size} needs a store at which the ranks meet; pass a TCPStore")
        store = dist.HashStore()  # pyright: ignore[reportPrivateImportUsage]
    timeout = timedelta(seconds=timeout_s)
    dist.init_process_group(accelerator.dist_backend, store=store, rank=rank, world_size=world_size, timeout=timeout)
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=tensor_parallel,
        # megatron makes a timedelta of it, so that parts of a minute count.
        distributed_timeout_minutes=cast(int, timeout_s / 60),
    )
    on_gloo = accelerator.dist_backend == "gloo"
    group = dist.group.WORLD if on_gloo else dist.new_group(backend="gloo", timeout=timeout)
    _object_group = cast(dist.ProcessGroup, group)
    accelerator.seed(seed)


def object_group() -> dist.ProcessGroup:
    """All ranks on gloo, for flags and small objects, on the CPU: object collectives over hccl have hung.

    Made once, by ``init_parallel``. Raises ModelError before that.
    """
    if _object_group is None:
        raise ModelError("object_group: call init_parallel() first")
    return _object_group


def build_gpt(
    spec: ModelSpec,
    dtype: Dtype,
    *,
    sequence_parallel: bool = False,
    recompute: Literal["none", "full"] = "none",
    accelerator: Accelerator = CPU,
) -> tuple[TransformerConfig, GPTModel]:
    """This rank's shard of the model, in ``dtype``, with memory allocated and **not initialised**: load weights next.

    It lies on the accelerator's device. ``recompute`` full keeps of each layer the input only and runs it again in backward.
    Raises ModelError.
    """
    if dtype not in accelerator.dtypes:
        raise ModelError(f"dtype={dtype} on {accelerator.device}: allowed is {' or '.join(accelerator.dtypes)}")
    config = _transformer_config(spec, dtype, sequence_parallel, recompute, accelerator)
    gpt = GPTModel(
        config=config,
        transformer_layer_spec=cast(Any, _block_spec(spec)),
        vocab_size=spec.padded_vocab_size,
        max_sequence_length=spec.max_positions,
        position_embedding_type="rope",
        rotary_base=cast(int, spec.rope_theta),
        share_embeddings_and_output_weights=spec.tied,
    )
    cast(Any, gpt).builds_causal_mask = accelerator.builds_causal_mask
    _mark_shards(gpt)
    return config, gpt


def hidden_states(model: torch.nn.Module, ids: Int[Tensor, "b s"]) -> Float[Tensor, "s b h"]:
    """Final hidden states, after the last norm and before the output layer, in the model's dtype.

    ``model`` is a GPTModel or its wrapping in Float16Module and DistributedDataParallel; ids are padded on the right
    only. The result is whole on every tensor-parallel rank. Its gradient is summed over the ranks here, so an output head
    that works on a shard of the vocabulary hands back its own part of it.

    Raises ModelError for a length that sequence parallelism cannot split.
    """
    gpt = unwrap(model)
    batch, length = ids.shape
    ranks = gpt.config.tensor_model_parallel_size
    if gpt.config.sequence_parallel and length % ranks:
        raise ModelError(
            f"{length} positions with sequence parallelism over {ranks} ranks: allowed is a multiple of {ranks}; "
            "pad on the right"
        )
    positions = torch.arange(length, device=ids.device).expand(batch, -1)
    mask = None if gpt.builds_causal_mask else _causal_mask(length, ids.device)
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

    Megatron's own wrapper refuses sequence parallelism; without the mark training runs, with wrong gradients. So the weight
    is made where and as it stays: moving it to another device can replace the parameter, and the mark would be lost.
    """

    def __init__(self, config: TransformerConfig, hidden_size: int, eps: float, **_unused: Any) -> None:
        device = "cpu" if config.use_cpu_initialization else torch.cuda.current_device()
        super().__init__(hidden_size, eps=eps, device=device, dtype=config.params_dtype)
        cast(Any, self.weight).sequence_parallel = config.sequence_parallel


def _transformer_config(
    spec: ModelSpec, dtype: Dtype, sequence_parallel: bool, recompute: Literal["none", "full"], accelerator: Accelerator
) -> TransformerConfig:
    tensor_parallel = parallel_state.get_tensor_model_parallel_world_size()
    spec.check_tensor_parallel(tensor_parallel)
    return TransformerConfig(
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
        # On a device, memory is allocated there at once.
        use_cpu_initialization=accelerator.device == "cpu",
        perform_initialization=False,
        attention_softmax_in_fp32=True,
        **recompute_options(recompute),
        # Fused kernels of Apex and TransformerEngine, which neither a CPU nor an NPU has.
        gradient_accumulation_fusion=False,
        masked_softmax_fusion=False,
        persist_layer_norm=False,
        bias_activation_fusion=False,
        bias_dropout_fusion=False,
        apply_rope_fusion=False,
    )


def _mark_shards(gpt: GPTModel) -> None:
    """Say which parameters are shards, which megatron does only where it initialises them.

    Without the mark its gradient norm takes them for copies and counts those of the first rank alone: clipping at
    tensor_parallel > 1 would go by a norm that is too small.
    """
    split = {ColumnParallelLinear: 0, VocabParallelEmbedding: 0, RowParallelLinear: 1}
    for module in gpt.modules():
        weight = getattr(module, "weight", None)
        if type(module) in split and weight is not None and not hasattr(weight, "tensor_model_parallel"):
            set_tensor_model_parallel_attributes(weight, True, split[type(module)], 1)


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
