"""A model directory in Hugging Face form: config.json, safetensors (one file or several with an index), tokenizer."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from openclaw_core.weights.errors import WeightsError
from openclaw_core.weights.files import file_records, read_json
from openclaw_core.weights.names import hf_shapes, to_megatron
from openclaw_core.weights.spec import ModelSpec

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
# Beside the weights: what makes the model usable as it is.
_COMPANIONS = ("*.json", "*.jinja", "*.txt", "*.model", "LICENSE*")


class HFWeights:
    """The tensors of a model directory by name, read one at a time.

    Raises:
        WeightsError: no safetensors, a file of the index is missing, or a file is not whole.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._handles: dict[str, Any] = {}
        for file in weight_files(directory):
            try:
                handle: Any = safe_open(file, framework="pt")
            except (SafetensorError, OSError) as error:
                raise WeightsError(f"{file} is not a whole safetensors file ({error}); fetch the model again") from error
            self._handles.update(dict.fromkeys(handle.keys(), handle))

    @property
    def names(self) -> frozenset[str]:
        """All tensors of the directory."""
        return frozenset(self._handles)

    def get(self, name: str) -> Tensor:
        """One tensor, in the dtype of the file."""
        if name not in self._handles:
            raise WeightsError(f"{self.directory} has no tensor {name}; config.json and the weights do not belong together")
        return self._handles[name].get_tensor(name)

    def items(self) -> Iterator[tuple[str, Tensor]]:
        """(name, tensor) in the order of names."""
        for name in sorted(self._handles):
            yield name, self.get(name)


def weight_files(directory: Path) -> list[Path]:
    """The safetensors files of a model directory. Raises WeightsError if there are none or one is missing."""
    index = read_json(directory / INDEX)
    names = sorted(set(index["weight_map"].values())) if index else [WEIGHTS]
    files = [directory / name for name in names]
    missing = [file.name for file in files if not file.is_file()]
    if missing:
        raise WeightsError(f"{directory} lacks {', '.join(missing)}; a model directory needs its safetensors files")
    return files


def digest(directory: Path) -> dict[str, dict[str, Any]]:
    """Size and sha256 of config.json and of every weight file: equal digests mean the same model."""
    return file_records([directory / "config.json", *weight_files(directory)])


def copy_companions(source: Path, destination: Path) -> None:
    """Copy configuration, tokenizer and licence, everything but weights and their index."""
    for pattern in _COMPANIONS:
        for file in source.glob(pattern):
            if file.is_file() and file.name != INDEX:
                shutil.copyfile(file, destination / file.name)


def load_hf(gpt: torch.nn.Module, directory: Path, spec: ModelSpec, tensor_parallel: int = 1, rank: int = 0) -> None:
    """Copy a model directory's weights into this rank's GPTModel, converting to the parameters' dtype.

    Raises:
        WeightsError: a parameter is not set, a tensor is left over, or shapes differ.
    """
    weights = HFWeights(directory)
    _refuse_left_over(weights, spec)
    shards = to_megatron(weights.get, spec, tensor_parallel, rank)
    own = dict(gpt.named_parameters())
    if own.keys() != shards.keys():
        raise WeightsError(f"{directory}: these megatron parameters have no counterpart: {sorted(own.keys() ^ shards.keys())}")
    with torch.no_grad():
        for name, parameter in own.items():
            if parameter.shape != shards[name].shape:
                raise WeightsError(
                    f"{name} is {list(parameter.shape)} in megatron but {list(shards[name].shape)} in {directory}"
                )
            parameter.copy_(shards[name])


def _refuse_left_over(weights: HFWeights, spec: ModelSpec) -> None:
    left = weights.names - hf_shapes(spec).keys()
    # Some publishers store the tied matrix twice.
    if spec.tied and "lm_head.weight" in left and _tied_copy(weights):
        left -= {"lm_head.weight"}
    if left:
        raise WeightsError(f"{weights.directory} has tensors that config.json does not ask for: {sorted(left)[:8]}")


def _tied_copy(weights: HFWeights) -> bool:
    return torch.equal(weights.get("lm_head.weight"), weights.get("model.embed_tokens.weight"))
