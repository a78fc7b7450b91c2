"""Model directories: read strictly, written whole, exported as they were published."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from openclaw_core.weights.checksum import checksum, checksum_directory
from openclaw_core.weights.errors import WeightsError
from openclaw_core.weights.export import export_hf
from openclaw_core.weights.files import atomic_directory, write_json
from openclaw_core.weights.hf_files import HFWeights


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_an_export_is_what_was_published_and_loads_in_transformers(
    tmp_path: Path, tiny_qwen3_dir: Path, dtype: torch.dtype
) -> None:
    published = {name: tensor.to(dtype) * 2 for name, tensor in HFWeights(tiny_qwen3_dir).items()}
    result = export_hf(published.items(), tiny_qwen3_dir, tmp_path / "export")

    assert result.checksum == checksum(published.items()) == checksum_directory(result.path)
    model = AutoModelForCausalLM.from_pretrained(result.path)
    assert model.dtype == dtype
    assert torch.equal(model.lm_head.weight, published["lm_head.weight"])
    assert AutoTokenizer.from_pretrained(result.path).eos_token == "<|im_end|>"


def test_an_incomplete_export_is_refused_and_leaves_the_earlier_one(tmp_path: Path, tiny_llama_dir: Path) -> None:
    out = tmp_path / "export"
    weights = load_file(tiny_llama_dir / "model.safetensors")
    before = export_hf(weights.items(), tiny_llama_dir, out).checksum
    weights.pop("model.norm.weight")

    with pytest.raises(WeightsError, match=r"missing or not part of the model.*model\.norm\.weight"):
        export_hf(weights.items(), tiny_llama_dir, out)
    assert checksum_directory(out) == before


def test_a_directory_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    target = tmp_path / "deep" / "target"
    with pytest.raises(KeyboardInterrupt), atomic_directory(target) as directory:
        (directory / "half").write_text("written")
        raise KeyboardInterrupt
    assert list(target.parent.iterdir()) == []

    for text in ("first", "second"):
        with atomic_directory(target) as directory:
            (directory / "file").write_text(text)
        assert [path.read_text() for path in target.iterdir()] == [text]
    assert list(target.parent.iterdir()) == [target]


def test_weights_in_several_files_are_found_by_their_index(tmp_path: Path, tiny_llama_dir: Path) -> None:
    weights = load_file(tiny_llama_dir / "model.safetensors")
    index = {name: f"model-0000{i % 2 + 1}-of-00002.safetensors" for i, name in enumerate(weights)}
    for file in sorted(set(index.values())):
        save_file({name: weights[name] for name in weights if index[name] == file}, tmp_path / file)
    write_json(tmp_path / "model.safetensors.index.json", {"weight_map": index})

    assert checksum_directory(tmp_path) == checksum_directory(tiny_llama_dir)
    (tmp_path / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(WeightsError, match=r"lacks model-00002-of-00002\.safetensors"):
        checksum_directory(tmp_path)


def test_a_truncated_weights_file_is_named(tmp_path: Path, tiny_llama_dir: Path) -> None:
    content = (tiny_llama_dir / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(content[: len(content) // 2])

    with pytest.raises(WeightsError, match=r"model\.safetensors is not a whole safetensors file"):
        HFWeights(tmp_path)
