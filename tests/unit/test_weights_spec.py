"""ModelSpec: what is read from config.json, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from openclaw_core.weights.errors import ModelError
from openclaw_core.weights.spec import ModelSpec

QWEN3: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "hidden_size": 2560,
    "intermediate_size": 9728,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151936,
    "tie_word_embeddings": True,
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 262144,
    "rope_theta": 5000000,
    "rope_scaling": None,
    "attention_bias": False,
    "use_sliding_window": False,
}


def test_a_published_qwen3_configuration_is_read(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(QWEN3))
    spec = ModelSpec.from_hf(tmp_path)

    assert spec == ModelSpec.from_hf(QWEN3)
    assert (spec.family, spec.qk_norm, spec.tied, spec.head_dim, spec.kv_heads) == ("qwen3", True, True, 128, 8)
    assert spec.rope_theta == 5e6
    assert spec.padded_vocab_size == 151936


def test_rope_theta_is_found_where_transformers_5_writes_it() -> None:
    new = {name: value for name, value in QWEN3.items() if not name.startswith("rope")}
    new["rope_parameters"] = {"rope_type": "default", "rope_theta": 5000000.0}

    assert ModelSpec.from_hf(new) == ModelSpec.from_hf(QWEN3)


def test_head_dimension_and_key_value_heads_have_the_usual_defaults() -> None:
    llama = QWEN3 | {"architectures": ["LlamaForCausalLM"], "head_dim": None, "num_key_value_heads": None}
    spec = ModelSpec.from_hf(llama)

    assert (spec.family, spec.qk_norm, spec.head_dim, spec.kv_heads) == ("llama", False, 80, 32)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"architectures": ["MistralForCausalLM"]}, r"MistralForCausalLM.*supported are LlamaForCausalLM, Qwen3ForCausalLM"),
        ({"architectures": None}, r"architectures=\[\]"),
        ({"attention_bias": True}, r"attention_bias=True is not supported; only False"),
        ({"hidden_act": "gelu"}, r"hidden_act='gelu' is not supported; only 'silu'"),
        ({"use_sliding_window": True}, r"use_sliding_window=True"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, r"sliding_attention"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, r"rope .*yarn.* is not supported"),
        ({"rope_parameters": {"rope_type": "llama3", "rope_theta": 1e4}}, r"rope .*llama3.* is not supported"),
        ({"rope_theta": None}, r"rope_theta is missing"),
    ],
)
def test_what_is_not_implemented_is_refused_by_name(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        ModelSpec.from_hf(QWEN3 | change)


def test_a_missing_field_is_named() -> None:
    with pytest.raises(ModelError, match="intermediate_size is missing"):
        ModelSpec.from_hf({name: value for name, value in QWEN3.items() if name != "intermediate_size"})


def test_a_missing_or_broken_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"config\.json: not a readable config\.json"):
        ModelSpec.from_hf(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ModelError, match=r"config\.json: not a readable config\.json"):
        ModelSpec.from_hf(tmp_path)
