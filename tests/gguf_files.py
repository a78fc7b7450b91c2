"""Small GGUF files and the wheels that carry them, for tests of model sources."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import numpy as np
import torch
from gguf import MODEL_ARCH, GGMLQuantizationType, GGUFWriter, TokenType, get_tensor_name_map, quants
from safetensors.torch import load_file

from openclaw_core.weights.spec import ModelSpec
from tests.models import CHAT_TEMPLATE


def write_gguf(
    hf_dir: Path, file: Path, *, quantisation: GGMLQuantizationType = GGMLQuantizationType.F32, architecture: str = "llama"
) -> Path:
    """The tiny Llama or Qwen3 of ``hf_dir`` as llama.cpp would convert it; only matrices are quantised."""
    spec = ModelSpec.from_hf(hf_dir)
    writer = GGUFWriter(file, architecture)
    writer.add_name("tiny")
    writer.add_block_count(spec.layers)
    writer.add_context_length(spec.max_positions)
    writer.add_embedding_length(spec.hidden)
    writer.add_feed_forward_length(spec.ffn)
    writer.add_head_count(spec.heads)
    writer.add_head_count_kv(spec.kv_heads)
    writer.add_key_length(spec.head_dim)
    writer.add_value_length(spec.head_dim)
    writer.add_rope_freq_base(spec.rope_theta)
    writer.add_layer_norm_rms_eps(spec.rms_norm_eps)
    writer.add_vocab_size(spec.vocab_size)
    _add_tokenizer(writer, json.loads((hf_dir / "tokenizer.json").read_text()))
    names = get_tensor_name_map(MODEL_ARCH[spec.family.upper()], spec.layers)
    for name, tensor in load_file(hf_dir / "model.safetensors").items():
        tensor = tensor.float()
        if spec.family == "llama" and name.endswith(("q_proj.weight", "k_proj.weight")):
            tensor = _pairs_from_halves(tensor, spec.head_dim)
        kind = quantisation if tensor.dim() > 1 else GGMLQuantizationType.F32
        writer.add_tensor(str(names.get_name(name, (".weight",))), quants.quantize(tensor.numpy(), kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def write_wheel(directory: Path, distribution: str, version: str, files: dict[str, bytes]) -> Path:
    """A wheel that pip accepts, with ``files`` in its package."""
    package = distribution.replace("-", "_")
    info = f"{package}-{version}.dist-info"
    wheel = directory / f"{package}-{version}-py3-none-any.whl"
    content = {
        f"{package}/__init__.py": b"",
        **{f"{package}/{name}": data for name, data in files.items()},
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{name},,\n" for name in [*content, f"{info}/RECORD"])
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, data in {**content, f"{info}/RECORD": record.encode()}.items():
            archive.writestr(name, data)
    return wheel


def _add_tokenizer(writer: GGUFWriter, tokenizer: dict) -> None:
    vocabulary = sorted(tokenizer["model"]["vocab"], key=tokenizer["model"]["vocab"].__getitem__)
    special = {token["content"] for token in tokenizer["added_tokens"]}
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(vocabulary)
    writer.add_token_types([TokenType.CONTROL if token in special else TokenType.NORMAL for token in vocabulary])
    merges = tokenizer["model"]["merges"]
    writer.add_token_merges([merge if isinstance(merge, str) else " ".join(merge) for merge in merges])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_chat_template(CHAT_TEMPLATE)


def _pairs_from_halves(weight: torch.Tensor, head_dim: int) -> torch.Tensor:
    """llama.cpp's order of rotated rows: index by index, element i beside element i + head_dim / 2."""
    rows = np.arange(weight.shape[0]).reshape(-1, head_dim)
    half = head_dim // 2
    order = np.concatenate([[head[i], head[i + half]] for head in rows for i in range(half)])
    return weight[torch.from_numpy(order)]
