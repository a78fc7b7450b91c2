"""Loading a model directory into the trainer's parameters: all of them, nothing left over."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from openclaw_core.weights.errors import WeightsError
from openclaw_core.weights.hf_files import copy_companions, load_hf
from openclaw_core.weights.names import to_hf, to_megatron
from openclaw_core.weights.spec import ModelSpec


class Parameters(torch.nn.Module):
    """The parameters of one rank by megatron's names, not yet set."""

    def __init__(self, directory: Path, dtype: torch.dtype) -> None:
        super().__init__()
        weights = load_file(directory / "model.safetensors")
        shards = to_megatron(weights.__getitem__, ModelSpec.from_hf(directory))
        self.by_name = {name: torch.full_like(tensor, float("nan"), dtype=dtype) for name, tensor in shards.items()}

    def named_parameters(self, *_args: object, **_options: object) -> Iterator[tuple[str, torch.Tensor]]:  # pyright: ignore
        yield from self.by_name.items()


def changed(tmp_path: Path, directory: Path, changes: dict[str, torch.Tensor]) -> Path:
    """A copy of a model directory with some tensors more or other."""
    copy_companions(directory, tmp_path)
    save_file(load_file(directory / "model.safetensors") | changes, tmp_path / "model.safetensors")
    return tmp_path


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_parameter_is_set_in_its_own_dtype(tiny_qwen3_dir: Path, dtype: torch.dtype) -> None:
    spec, parameters = ModelSpec.from_hf(tiny_qwen3_dir), Parameters(tiny_qwen3_dir, dtype)
    load_hf(parameters, tiny_qwen3_dir, spec)
    loaded = dict(to_hf([parameters.by_name], spec))

    for name, tensor in load_file(tiny_qwen3_dir / "model.safetensors").items():
        assert loaded[name].dtype == dtype
        assert torch.equal(loaded[name], tensor.to(dtype)), name


def test_a_tensor_that_is_left_over_is_named(tmp_path: Path, tiny_llama_dir: Path) -> None:
    directory = changed(tmp_path, tiny_llama_dir, {"model.layers.0.self_attn.q_proj.bias": torch.zeros(64)})

    with pytest.raises(WeightsError, match=r"does not ask for: \['model\.layers\.0\.self_attn\.q_proj\.bias'\]"):
        load_hf(Parameters(tiny_llama_dir, torch.float32), directory, ModelSpec.from_hf(directory))


def test_a_tied_matrix_may_be_stored_twice_but_not_differ(tmp_path: Path, tiny_llama_dir: Path) -> None:
    embedding = load_file(tiny_llama_dir / "model.safetensors")["model.embed_tokens.weight"]
    spec, parameters = ModelSpec.from_hf(tiny_llama_dir), Parameters(tiny_llama_dir, torch.float32)
    load_hf(parameters, changed(tmp_path, tiny_llama_dir, {"lm_head.weight": embedding.clone()}), spec)

    with pytest.raises(WeightsError, match=r"does not ask for: \['lm_head\.weight'\]"):
        load_hf(parameters, changed(tmp_path, tiny_llama_dir, {"lm_head.weight": embedding + 1}), spec)


def test_a_parameter_without_counterpart_is_named(tiny_llama_dir: Path) -> None:
    parameters = Parameters(tiny_llama_dir, torch.float32)
    parameters.by_name["output_layer.weight"] = torch.zeros(640, 64)

    with pytest.raises(WeightsError, match=r"have no counterpart: \['output_layer\.weight'\]"):
        load_hf(parameters, tiny_llama_dir, ModelSpec.from_hf(tiny_llama_dir))
