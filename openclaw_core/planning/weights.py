"""Bytes that do not depend on the batch: parameters, gradients, optimiser, checkpoints. Exact, padding included."""

from __future__ import annotations

import math

from openclaw_core.weights.spec import Dtype, ModelSpec

FP32 = 4
DTYPE_BYTES: dict[Dtype, int] = {"bf16": 2, "fp32": 4}

# Megatron's DistributedDataParallel, with the distributed optimiser: a parameter begins at a multiple of 64 elements of
# its buffer, and a bucket ends at a multiple of 128 elements and of the ranks that share it.
_PARAMETER_ALIGNMENT = 64
_BUCKET_ALIGNMENT = 128


def parameter_sizes(spec: ModelSpec, tensor_parallel: int = 1) -> list[int]:
    """Elements of every parameter that one rank holds: the embedding first, a tied output matrix not again."""
    tp, queries, keys = tensor_parallel, spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim
    vocabulary = spec.padded_vocab_size // tp * spec.hidden
    layer = [
        spec.hidden,  # norm before attention
        (queries + 2 * keys) // tp * spec.hidden,
        queries // tp * spec.hidden,
        spec.hidden,  # norm before the feed-forward part
        2 * spec.ffn // tp * spec.hidden,  # gate and up
        spec.ffn // tp * spec.hidden,
        *([spec.head_dim] * 2 if spec.qk_norm else []),
    ]
    return [vocabulary, *layer * spec.layers, spec.hidden, *([] if spec.tied else [vocabulary])]


def hf_parameters(spec: ModelSpec) -> int:
    """Parameters of the model as it is published: without the padding of the vocabulary."""
    padding = (spec.padded_vocab_size - spec.vocab_size) * spec.hidden
    return sum(parameter_sizes(spec)) - padding * (1 if spec.tied else 2)


def buffer_elements(spec: ModelSpec, tensor_parallel: int, data_parallel: int, *, distributed: bool) -> int:
    """Elements of a rank's gradient buffer; with the distributed optimiser also of the buffer that holds its parameters."""
    sizes = parameter_sizes(spec, tensor_parallel)
    if not distributed:
        return sum(sizes)
    # A tied embedding has a bucket of its own.
    buckets = [sizes[:1], sizes[1:]] if spec.tied else [sizes]
    end = math.lcm(_BUCKET_ALIGNMENT, data_parallel)
    return sum(_ceil(sum(_ceil(size, _PARAMETER_ALIGNMENT) for size in bucket), end) for bucket in buckets)


def model_bytes(spec: ModelSpec, dtype: Dtype, tensor_parallel: int) -> int:
    """A rank's share of the weights, for forward passes."""
    return sum(parameter_sizes(spec, tensor_parallel)) * DTYPE_BYTES[dtype]


def gradient_bytes(spec: ModelSpec, tensor_parallel: int, data_parallel: int, *, distributed: bool) -> int:
    """main_grad, in fp32 whatever the parameters are."""
    return buffer_elements(spec, tensor_parallel, data_parallel, distributed=distributed) * FP32


def trained_parameter_bytes(
    spec: ModelSpec, dtype: Dtype, tensor_parallel: int, data_parallel: int, *, distributed: bool
) -> int:
    """A trainer rank's parameters."""
    return buffer_elements(spec, tensor_parallel, data_parallel, distributed=distributed) * DTYPE_BYTES[dtype]


def optimizer_bytes(spec: ModelSpec, dtype: Dtype, tensor_parallel: int, data_parallel: int, *, distributed: bool) -> int:
    """fp32 masters (where parameters are bf16) and the two moments of AdamW; the ranks' largest share of them."""
    elements = buffer_elements(spec, tensor_parallel, data_parallel, distributed=distributed)
    return optimizer_bytes_per_parameter(dtype) * (elements // data_parallel if distributed else elements)


def optimizer_bytes_per_parameter(dtype: Dtype) -> int:
    """Masters and moments."""
    return (3 if dtype == "bf16" else 2) * FP32


def checkpoint_bytes(spec: ModelSpec, dtype: Dtype) -> int:
    """A training checkpoint of all ranks: weights, masters, moments; 14 bytes a parameter in bf16."""
    return sum(parameter_sizes(spec)) * (DTYPE_BYTES[dtype] + optimizer_bytes_per_parameter(dtype))


def _ceil(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
