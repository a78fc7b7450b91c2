"""ModelSpec: what a Hugging Face config.json says about a model, reduced to what the trainer builds from."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from openclaw_core.weights.errors import ModelError

Dtype = Literal["bf16", "fp32"]
"""bf16: bf16 parameters, fp32 masters in the optimiser. fp32: for exactness tests."""

VOCAB_MULTIPLE = 128
"""Rows of the embedding are padded to a multiple of this, whatever the tensor parallelism: checkpoints stay reshardable."""

_FAMILIES: dict[str, Literal["llama", "qwen3"]] = {"LlamaForCausalLM": "llama", "Qwen3ForCausalLM": "qwen3"}

# Fields that change the arithmetic, with the only value that is implemented.
_ONLY: dict[str, Any] = {
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "use_sliding_window": False,
    "rope_interleaved": False,
    "attention_dropout": 0.0,
    "partial_rotary_factor": 1.0,
}


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """The architecture of one model. Sizes in elements, per model and not per rank."""

    family: Literal["llama", "qwen3"]
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab_size: int
    tied: bool
    """The output matrix is the embedding."""
    rope_theta: float
    rms_norm_eps: float
    max_positions: int

    @property
    def qk_norm(self) -> bool:
        """Queries and keys pass an RMSNorm per head."""
        return self.family == "qwen3"

    @property
    def padded_vocab_size(self) -> int:
        """Rows of megatron's embedding; ids from ``vocab_size`` on belong to no token."""
        return -(-self.vocab_size // VOCAB_MULTIPLE) * VOCAB_MULTIPLE

    def check_tensor_parallel(self, size: int) -> None:
        """Raises ModelError if the model cannot be split over ``size`` ranks."""
        for name, value in (("kv_heads", self.kv_heads), ("ffn", self.ffn), ("padded vocabulary", self.padded_vocab_size)):
            if size < 1 or value % size:
                raise ModelError(f"tensor_parallel={size} does not divide {name}={value}; choose a common divisor")

    @classmethod
    def from_hf(cls, config: Path | Mapping[str, Any]) -> ModelSpec:
        """From a config.json, a directory that holds one, or its parsed content.

        Raises:
            ModelError: no such file, or an architecture, an option or a rope scaling that is not implemented.
        """
        where, fields = _read(config)
        architectures = fields.get("architectures") or []
        if len(architectures) != 1 or architectures[0] not in _FAMILIES:
            raise ModelError(f"{where}: architectures={architectures} is not supported; supported are {', '.join(_FAMILIES)}")
        _refuse_unsupported(where, fields)
        try:
            return cls(
                family=_FAMILIES[architectures[0]],
                layers=int(fields["num_hidden_layers"]),
                hidden=int(fields["hidden_size"]),
                heads=int(fields["num_attention_heads"]),
                kv_heads=int(fields.get("num_key_value_heads") or fields["num_attention_heads"]),
                head_dim=int(fields.get("head_dim") or fields["hidden_size"] // fields["num_attention_heads"]),
                ffn=int(fields["intermediate_size"]),
                vocab_size=int(fields["vocab_size"]),
                tied=bool(fields.get("tie_word_embeddings", False)),
                rope_theta=_rope_theta(where, fields),
                rms_norm_eps=float(fields["rms_norm_eps"]),
                max_positions=int(fields["max_position_embeddings"]),
            )
        except KeyError as error:
            raise ModelError(f"{where}: {error.args[0]} is missing; give the model's complete config.json") from None


def _read(config: Path | Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    if isinstance(config, Mapping):
        return "config", config
    path = config / "config.json" if config.is_dir() else config
    try:
        return str(path), json.loads(path.read_text())
    except (OSError, json.JSONDecodeError) as error:
        raise ModelError(f"{path}: not a readable config.json ({error})") from error


def _refuse_unsupported(where: str, fields: Mapping[str, Any]) -> None:
    for name, only in _ONLY.items():
        value = fields.get(name)
        if value is not None and value != only:
            raise ModelError(f"{where}: {name}={value!r} is not supported; only {only!r} is")
    other = set(fields.get("layer_types") or ()) - {"full_attention"}
    if other:
        raise ModelError(f"{where}: layer_types has {sorted(other)}; only 'full_attention' is supported")


def _rope_theta(where: str, fields: Mapping[str, Any]) -> float:
    """transformers 5 writes ``rope_parameters``; older files have ``rope_theta`` and ``rope_scaling``."""
    parameters = fields.get("rope_parameters") or fields.get("rope_scaling") or {}
    kind = parameters.get("rope_type", parameters.get("type", "default"))
    if kind != "default" or parameters.get("partial_rotary_factor", 1.0) != 1.0:
        raise ModelError(f"{where}: rope {dict(parameters)} is not supported; only rope_type 'default' without scaling is")
    theta = parameters.get("rope_theta", fields.get("rope_theta"))
    if theta is None:
        raise KeyError("rope_theta")
    return float(theta)
