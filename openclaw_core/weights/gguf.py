"""GGUF → a Hugging Face model directory: dequantised once, rounded to bf16, with its tokenizer.

Every backend starts from these same rounded numbers: many dequantised weights lie exactly on a bf16 rounding tie, where
fp32 masters from the unrounded file would flip by a whole unit at the first tiny update.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from gguf import MODEL_ARCH, GGUFReader, dequantize, get_tensor_name_map
from safetensors.torch import save_file
from torch import Tensor

from openclaw_core.weights.errors import ModelError, SourceError
from openclaw_core.weights.hf_files import WEIGHTS
from openclaw_core.weights.names import hf_shapes
from openclaw_core.weights.spec import ModelSpec

_ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen3": "Qwen3ForCausalLM"}
# As the file's names for them end.
_SPECIAL_TOKENS = {"bos_token": "bos", "eos_token": "eos", "pad_token": "padding", "unk_token": "unknown"}
# What the gguf package raises on bytes that make no sense.
_UNREADABLE = (ValueError, KeyError, IndexError, OverflowError, MemoryError, TypeError, struct.error)


def convert_gguf(gguf: Path, directory: Path) -> None:
    """Write the model and tokenizer in ``gguf`` to ``directory`` (which exists) in bf16.

    Raises:
        SourceError: the file is no whole GGUF, or holds a model that is not supported.
    """
    from transformers import AutoConfig, GenerationConfig, PreTrainedTokenizerFast, Qwen2Tokenizer

    architecture, head_dim, special_tokens, packed = _read(gguf)
    # AutoTokenizer of transformers 5.3 takes Code Llama's for any llama.
    tokenizer_class = {"llama": PreTrainedTokenizerFast, "qwen3": Qwen2Tokenizer}[architecture]
    try:
        config = AutoConfig.from_pretrained(gguf.parent, gguf_file=gguf.name)
        tokenizer = tokenizer_class.from_pretrained(gguf.parent, gguf_file=gguf.name)
    except (*_UNREADABLE, OSError) as error:
        raise SourceError(f"{gguf.name}: configuration or tokenizer cannot be read ({error}); fetch it again") from error
    config.architectures = [_ARCHITECTURES[architecture]]
    if head_dim is not None:  # transformers takes its default for some families
        config.head_dim = head_dim
    config.tie_word_embeddings = "output.weight" not in packed
    # GGUF stores it as float32: 9.9999997e-06 was 1e-05.
    config.rms_norm_eps = float(f"{config.rms_norm_eps:.6g}")
    config.dtype = torch.bfloat16
    try:
        spec = ModelSpec.from_hf(config.to_dict())
        weights = _weights(gguf, packed, architecture, spec)
    except ModelError as error:
        raise SourceError(f"{gguf.name}: {error}") from error
    save_file(weights, directory / WEIGHTS, metadata={"format": "pt"})
    (directory / WEIGHTS).chmod(0o644)  # it is made for its owner alone, and others copy it to other hosts
    config.save_pretrained(directory)
    GenerationConfig.from_model_config(config).save_pretrained(directory)
    tokenizer.add_special_tokens(special_tokens)  # not all versions of transformers read these from the file
    tokenizer.save_pretrained(directory)


def _read(gguf: Path) -> tuple[str, int | None, dict[str, str], Mapping[str, Any]]:
    """The architecture, the head dimension where it is noted, special tokens, and the packed tensors by GGUF name."""
    try:
        reader = GGUFReader(gguf)
        architecture = _field(reader, "general.architecture")
        head_dim = _field(reader, f"{architecture}.attention.key_length")
        ids = {name: _field(reader, f"tokenizer.ggml.{end}_token_id") for name, end in _SPECIAL_TOKENS.items()}
        tokens = _field(reader, "tokenizer.ggml.tokens")
        special_tokens = {name: tokens[number] for name, number in ids.items() if number is not None}
    except _UNREADABLE as error:
        raise SourceError(f"{gguf.name} is not a whole GGUF file ({error}); fetch it again") from error
    if architecture not in _ARCHITECTURES:
        raise SourceError(f"{gguf.name} holds architecture {architecture!r}; supported are {', '.join(_ARCHITECTURES)}")
    return architecture, head_dim, special_tokens, {tensor.name: tensor for tensor in reader.tensors}


def _field(reader: GGUFReader, name: str) -> Any:
    field = reader.get_field(name)
    return field.contents() if field else None


def _weights(gguf: Path, packed: Mapping[str, Any], architecture: str, spec: ModelSpec) -> dict[str, Tensor]:
    """Every tensor of the model under its Hugging Face name, in bf16."""
    names = get_tensor_name_map(MODEL_ARCH[architecture.upper()], spec.layers)
    left, weights = set(packed), {}
    for name, shape in hf_shapes(spec).items():
        source = names.get_name(name, try_suffixes=(".weight",))
        if source is None or source not in packed:
            raise SourceError(f"{gguf.name} has no tensor {source}; it is not a whole model")
        left.remove(source)
        tensor = torch.tensor(dequantize(packed[source].data, packed[source].tensor_type))
        if architecture == "llama" and name.endswith(("q_proj.weight", "k_proj.weight")):
            tensor = _halves_from_pairs(tensor, spec.head_dim)
        if tuple(tensor.shape) != shape:
            raise SourceError(f"{gguf.name}: {source} has shape {list(tensor.shape)}, its configuration asks for {list(shape)}")
        weights[name] = tensor.to(torch.bfloat16)
    if left:
        raise SourceError(f"{gguf.name} has tensors that are not supported: {sorted(left)[:8]}")
    return weights


def _halves_from_pairs(weight: Tensor, head_dim: int) -> Tensor:
    """Undo GGUF's order of Llama's query and key rows: it rotates neighbours (2i, 2i+1), Hugging Face rotates (i, i + d/2)."""
    return weight.reshape(-1, head_dim // 2, 2, weight.shape[-1]).transpose(1, 2).reshape(weight.shape).contiguous()
