"""Names and layouts: Hugging Face ↔ megatron."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from openclaw_core.weights.errors import ModelError, WeightsError
from openclaw_core.weights.names import hf_shapes, parameters, to_hf, to_megatron
from openclaw_core.weights.spec import ModelSpec

SPEC = ModelSpec(
    family="qwen3",
    layers=2,
    hidden=8,
    heads=8,
    kv_heads=4,
    head_dim=4,
    ffn=12,
    vocab_size=130,
    tied=False,
    rope_theta=1e4,
    rms_norm_eps=1e-6,
    max_positions=64,
)


@st.composite
def specs(draw: st.DrawFn) -> tuple[ModelSpec, int]:
    """A model and a tensor parallelism that divides it."""
    tensor_parallel = draw(st.sampled_from([1, 2, 4]))
    kv_heads = tensor_parallel * draw(st.integers(1, 2))
    spec = ModelSpec(
        family=draw(st.sampled_from(["llama", "qwen3"])),
        layers=draw(st.integers(1, 2)),
        hidden=draw(st.integers(1, 3)) * 2,
        heads=kv_heads * draw(st.integers(1, 3)),
        kv_heads=kv_heads,
        head_dim=draw(st.integers(1, 2)) * 2,
        ffn=tensor_parallel * draw(st.integers(1, 3)),
        vocab_size=draw(st.integers(1, 300)),
        tied=draw(st.booleans()),
        rope_theta=1e4,
        rms_norm_eps=1e-6,
        max_positions=64,
    )
    return spec, tensor_parallel


def hf_weights(spec: ModelSpec) -> dict[str, torch.Tensor]:
    """Every element of the model has a value of its own."""
    weights, start = {}, 0
    for name, shape in hf_shapes(spec).items():
        size = torch.Size(shape).numel()
        weights[name] = torch.arange(start, start + size, dtype=torch.float64).reshape(shape)
        start += size
    return weights


@settings(deadline=None, max_examples=60)
@given(specs())
def test_weights_return_from_every_split_as_they_were(case: tuple[ModelSpec, int]) -> None:
    spec, tensor_parallel = case
    weights = hf_weights(spec)
    shards = [to_megatron(weights.__getitem__, spec, tensor_parallel, rank) for rank in range(tensor_parallel)]
    returned = dict(to_hf(shards, spec))

    assert returned.keys() == weights.keys()
    assert all(torch.equal(returned[name], tensor) for name, tensor in weights.items())


@settings(deadline=None, max_examples=30)
@given(specs())
def test_ranks_hold_equal_shares_and_norms_whole(case: tuple[ModelSpec, int]) -> None:
    spec, tensor_parallel = case
    whole = to_megatron(hf_weights(spec).__getitem__, spec)
    for rank in range(tensor_parallel):
        shard = to_megatron(hf_weights(spec).__getitem__, spec, tensor_parallel, rank)
        for name, tensor in shard.items():
            expected = whole[name].numel() if "norm" in name else whole[name].numel() // tensor_parallel
            assert tensor.numel() == expected, name


def test_each_query_group_is_followed_by_its_key_and_value() -> None:
    weights = hf_weights(SPEC)
    prefix = "model.layers.1.self_attn."
    q, k, v = (weights[f"{prefix}{part}_proj.weight"] for part in "qkv")
    fused = to_megatron(weights.__getitem__, SPEC)["decoder.layers.1.self_attention.linear_qkv.weight"]
    queries, rows = 2 * SPEC.head_dim, 4 * SPEC.head_dim

    for group in range(SPEC.kv_heads):
        block = fused[group * rows : (group + 1) * rows]
        one = slice(group * SPEC.head_dim, (group + 1) * SPEC.head_dim)
        assert torch.equal(block[:queries], q[group * queries : (group + 1) * queries])
        assert torch.equal(block[queries : queries + SPEC.head_dim], k[one])
        assert torch.equal(block[queries + SPEC.head_dim :], v[one])


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_has_its_half_of_gate_above_its_half_of_up(rank: int) -> None:
    weights = hf_weights(SPEC)
    shard = to_megatron(weights.__getitem__, SPEC, 2, rank)["decoder.layers.0.mlp.linear_fc1.weight"]
    half = slice(rank * 6, rank * 6 + 6)

    assert torch.equal(shard[:6], weights["model.layers.0.mlp.gate_proj.weight"][half])
    assert torch.equal(shard[6:], weights["model.layers.0.mlp.up_proj.weight"][half])


def test_padding_rows_of_the_vocabulary_are_zero() -> None:
    embedding = to_megatron(hf_weights(SPEC).__getitem__, SPEC)["embedding.word_embeddings.weight"]

    assert embedding.shape == (256, SPEC.hidden)
    assert embedding[SPEC.vocab_size :].abs().max() == 0


@pytest.mark.parametrize("tied", [True, False])
def test_a_tied_output_matrix_is_listed_once(tied: bool) -> None:
    spec = dataclasses.replace(SPEC, tied=tied)
    listed = [name for parameter in parameters(spec) for name in parameter.hf]

    assert len(listed) == len(set(listed))
    assert ("lm_head.weight" in listed) is not tied


@pytest.mark.parametrize("tensor_parallel", [0, 3, 8])
def test_a_split_that_does_not_divide_the_model_is_refused(tensor_parallel: int) -> None:
    with pytest.raises(ModelError, match=rf"tensor_parallel={tensor_parallel} does not divide kv_heads=4"):
        to_megatron(hf_weights(SPEC).__getitem__, SPEC, tensor_parallel)


def test_a_tensor_of_another_shape_is_refused_by_name() -> None:
    weights = hf_weights(SPEC) | {"model.norm.weight": torch.zeros(9)}

    with pytest.raises(WeightsError, match=r"model.norm.weight has shape \[9\], config.json asks for \[8\]"):
        to_megatron(weights.__getitem__, SPEC)
