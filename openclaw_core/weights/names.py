"""Hugging Face ↔ megatron: names and layouts of the Llama and Qwen3 families, per tensor-parallel rank.

Megatron fuses what it multiplies together and splits it over ranks:

* ``linear_qkv`` holds, per group of query heads that share a key and a value, [queries | key | value];
* ``linear_fc1`` holds on each rank [its part of gate | its part of up];
* the embedding and the output matrix are padded with zero rows up to ``spec.padded_vocab_size``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache

import torch
from jaxtyping import Float
from torch import Tensor

from openclaw_core.weights.errors import WeightsError
from openclaw_core.weights.spec import ModelSpec


class Layout(StrEnum):
    """How a megatron parameter is made of Hugging Face tensors and split over ranks."""

    REPLICATED = "replicated"
    """The same on every rank."""
    COLUMNS = "columns"
    """Split along dimension 1: row-parallel layers."""
    VOCAB = "vocab"
    """Padded, then split along dimension 0."""
    QKV = "qkv"
    """q, k, v interleaved by group, then split along dimension 0."""
    GATE_UP = "gate_up"
    """Gate and up each split along dimension 0, then stacked on each rank."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """One megatron parameter and the Hugging Face tensors that it is made of."""

    megatron: str
    hf: tuple[str, ...]
    layout: Layout


@cache
def parameters(spec: ModelSpec) -> tuple[Parameter, ...]:
    """Every parameter of the model, once; a tied output matrix is the embedding and is not listed."""
    listed = [Parameter("embedding.word_embeddings.weight", ("model.embed_tokens.weight",), Layout.VOCAB)]
    for layer in range(spec.layers):
        listed += _layer_parameters(layer, spec.qk_norm)
    listed.append(Parameter("decoder.final_layernorm.weight", ("model.norm.weight",), Layout.REPLICATED))
    if not spec.tied:
        listed.append(Parameter("output_layer.weight", ("lm_head.weight",), Layout.VOCAB))
    return tuple(listed)


def to_megatron(get: Callable[[str], Tensor], spec: ModelSpec, tensor_parallel: int = 1, rank: int = 0) -> dict[str, Tensor]:
    """The parameters of one tensor-parallel rank, by megatron name; ``get`` returns a Hugging Face tensor by name.

    Raises:
        ModelError: the model cannot be split that way.
        WeightsError: a tensor does not have the shape that the spec asks for.
    """
    spec.check_tensor_parallel(tensor_parallel)
    shards: dict[str, Tensor] = {}
    for parameter in parameters(spec):
        tensors = [get(name) for name in parameter.hf]
        for name, tensor in zip(parameter.hf, tensors, strict=True):
            _check_shape(name, tensor, spec)
        shards[parameter.megatron] = _shard(parameter.layout, tensors, spec, tensor_parallel, rank)
    return shards


def to_hf(shards: Sequence[Mapping[str, Tensor]], spec: ModelSpec) -> Iterator[tuple[str, Tensor]]:
    """Hugging Face (name, tensor) pairs from the parameters of all tensor-parallel ranks, in rank order.

    Padding is cut off and a tied matrix appears once. A tensor may share memory with the parameter that it comes from:
    copy what must outlive the next optimiser step.
    """
    for parameter in parameters(spec):
        yield from whole(parameter, [shard[parameter.megatron] for shard in shards], spec)


def whole(
    parameter: Parameter, parts: Sequence[Tensor], spec: ModelSpec, *, grouped: bool = False
) -> Iterator[tuple[str, Tensor]]:
    """The Hugging Face (name, tensor) pairs of one parameter from its parts, in rank order; they may share memory.

    ``grouped``: for a receiver that copies anyway, queries, keys and values stay views [groups, rows of a group, h] of the
    fused matrix; ``flatten(0, 1)`` would make them the Hugging Face tensors.
    """
    if grouped and parameter.layout is Layout.QKV:
        yield from zip(parameter.hf, _by_group(_joined(parts), spec), strict=True)
    else:
        yield from zip(parameter.hf, _unshard(parameter.layout, parts, spec), strict=True)


def hf_shapes(spec: ModelSpec) -> dict[str, tuple[int, ...]]:
    """The shape of every Hugging Face tensor of the model, by name."""
    return {name: _hf_shape(name, spec) for parameter in parameters(spec) for name in parameter.hf}


def _layer_parameters(layer: int, qk_norm: bool) -> list[Parameter]:
    hf, megatron = f"model.layers.{layer}.", f"decoder.layers.{layer}."
    attention = [
        Parameter(
            megatron + "self_attention.linear_qkv.weight",
            tuple(f"{hf}self_attn.{part}_proj.weight" for part in "qkv"),
            Layout.QKV,
        ),
        Parameter(megatron + "self_attention.linear_proj.weight", (hf + "self_attn.o_proj.weight",), Layout.COLUMNS),
    ]
    if qk_norm:
        attention += [
            Parameter(
                megatron + f"self_attention.{part}_layernorm.weight", (f"{hf}self_attn.{part}_norm.weight",), Layout.REPLICATED
            )
            for part in "qk"
        ]
    return [
        Parameter(megatron + "input_layernorm.weight", (hf + "input_layernorm.weight",), Layout.REPLICATED),
        *attention,
        Parameter(megatron + "pre_mlp_layernorm.weight", (hf + "post_attention_layernorm.weight",), Layout.REPLICATED),
        Parameter(megatron + "mlp.linear_fc1.weight", (hf + "mlp.gate_proj.weight", hf + "mlp.up_proj.weight"), Layout.GATE_UP),
        Parameter(megatron + "mlp.linear_fc2.weight", (hf + "mlp.down_proj.weight",), Layout.COLUMNS),
    ]


def _shard(layout: Layout, tensors: Sequence[Tensor], spec: ModelSpec, tensor_parallel: int, rank: int) -> Tensor:
    def part(tensor: Tensor, dim: int = 0) -> Tensor:
        return tensor.chunk(tensor_parallel, dim)[rank]

    match layout:
        case Layout.REPLICATED:
            return tensors[0]
        case Layout.COLUMNS:
            return part(tensors[0], 1)
        case Layout.VOCAB:
            padding = spec.padded_vocab_size - spec.vocab_size
            return part(torch.nn.functional.pad(tensors[0], (0, 0, 0, padding)))
        case Layout.QKV:
            return part(_interleave(tensors, spec))
        case Layout.GATE_UP:
            return torch.cat([part(tensor) for tensor in tensors])


def _unshard(layout: Layout, parts: Sequence[Tensor], spec: ModelSpec) -> tuple[Tensor, ...]:
    match layout:
        case Layout.REPLICATED:
            return (parts[0],)
        case Layout.COLUMNS:
            return (_joined(parts, 1),)
        case Layout.VOCAB:
            return (_joined(parts)[: spec.vocab_size],)
        case Layout.QKV:
            return _deinterleave(_joined(parts), spec)
        case Layout.GATE_UP:
            gates, ups = zip(*(part.chunk(2) for part in parts), strict=True)
            return _joined(gates), _joined(ups)


def _joined(parts: Sequence[Tensor], dim: int = 0) -> Tensor:
    """One part is the whole, and is not copied."""
    return parts[0] if len(parts) == 1 else torch.cat(list(parts), dim)


def _interleave(qkv: Sequence[Float[Tensor, "rows h"]], spec: ModelSpec) -> Float[Tensor, "qkv h"]:
    groups = [tensor.reshape(spec.kv_heads, -1, spec.hidden) for tensor in qkv]
    return torch.cat(groups, dim=1).reshape(-1, spec.hidden)


def _deinterleave(qkv: Float[Tensor, "qkv h"], spec: ModelSpec) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v = (part.reshape(-1, spec.hidden) for part in _by_group(qkv, spec))
    return q, k, v


def _by_group(qkv: Float[Tensor, "qkv h"], spec: ModelSpec) -> tuple[Tensor, ...]:
    """Views of queries, keys and values: [groups, rows of a group, h] each."""
    queries = spec.heads // spec.kv_heads * spec.head_dim
    return qkv.reshape(spec.kv_heads, -1, spec.hidden).split([queries, spec.head_dim, spec.head_dim], dim=1)


def _check_shape(name: str, tensor: Tensor, spec: ModelSpec) -> None:
    expected = _hf_shape(name, spec)
    if tuple(tensor.shape) != expected:
        raise WeightsError(
            f"{name} has shape {list(tensor.shape)}, config.json asks for {list(expected)}; the two do not belong together"
        )


def _hf_shape(name: str, spec: ModelSpec) -> tuple[int, ...]:
    match name.rsplit(".", 2)[-2]:
        case "embed_tokens" | "lm_head":
            return spec.vocab_size, spec.hidden
        case "q_proj":
            return spec.heads * spec.head_dim, spec.hidden
        case "k_proj" | "v_proj":
            return spec.kv_heads * spec.head_dim, spec.hidden
        case "o_proj":
            return spec.hidden, spec.heads * spec.head_dim
        case "gate_proj" | "up_proj":
            return spec.ffn, spec.hidden
        case "down_proj":
            return spec.hidden, spec.ffn
        case "q_norm" | "k_norm":
            return (spec.head_dim,)
        case _:
            return (spec.hidden,)
