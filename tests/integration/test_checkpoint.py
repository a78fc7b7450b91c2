"""Training goes on bit for bit from a checkpoint, and a checkpoint is whole or absent."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from openclaw_core.trainer.retention import latest, read_info, step_directory
from openclaw_core.weights.checksum import checksum_directory
from openclaw_core.weights.convert import convert_checkpoint
from openclaw_core.weights.errors import WeightsError
from openclaw_core.weights.export import export_checkpoint
from tests.children import run_ranks
from tests.models import CHAT_TEMPLATE


def train(scratch: Path, hf: Path, dtype: str, **changes: Any) -> dict[str, Any]:
    request = {"hf": hf, "dtype": dtype, "load": None, "optimizer": True, "steps": 0, "save": None, "more": 0}
    request |= {"file_limit": None, "distributed": False}
    file = scratch / "request.json"
    file.write_text(json.dumps(request | changes, default=str))
    return json.loads(run_ranks("tests.integration.checkpoint_child", [file])[0])


@pytest.fixture(scope="module", params=["bf16", "fp32"])
def straight(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, tiny_qwen3_dir: Path) -> dict[str, Any]:
    """Two steps, a checkpoint, two more steps in one process."""
    scratch = tmp_path_factory.mktemp("straight")
    checkpoint = step_directory(scratch / "checkpoints", 2)
    result = train(scratch, tiny_qwen3_dir, request.param, steps=2, save=checkpoint, more=2)
    return result | {"dtype": request.param, "checkpoint": checkpoint}


def test_training_resumes_bit_for_bit(straight: dict[str, Any], tmp_path: Path, tiny_qwen3_dir: Path) -> None:
    checkpoint = straight["checkpoint"]
    resumed = train(tmp_path, tiny_qwen3_dir, straight["dtype"], load=checkpoint, more=2)

    assert latest(checkpoint.parent) == checkpoint
    assert resumed["meta"] == {"step": 2}
    assert resumed["losses"] == straight["losses"][2:]
    assert resumed["state"] == straight["state"]


def test_weights_alone_do_not_resume_the_optimiser(straight: dict[str, Any], tmp_path: Path, tiny_qwen3_dir: Path) -> None:
    """The comparison above can fail: without moments and random streams training goes another way."""
    resumed = train(tmp_path, tiny_qwen3_dir, straight["dtype"], load=straight["checkpoint"], optimizer=False, more=2)

    assert resumed["losses"] != straight["losses"][2:]
    assert resumed["state"] != straight["state"]


def test_a_training_checkpoint_is_exported_for_transformers(
    straight: dict[str, Any], tmp_path: Path, tiny_qwen3_dir: Path
) -> None:
    result = export_checkpoint(straight["checkpoint"], tiny_qwen3_dir, tmp_path / "export", print)

    assert result.checksum != checksum_directory(tiny_qwen3_dir)
    exported = AutoModelForCausalLM.from_pretrained(result.path)
    assert exported.dtype == {"bf16": torch.bfloat16, "fp32": torch.float32}[straight["dtype"]]
    assert AutoTokenizer.from_pretrained(result.path).chat_template == CHAT_TEMPLATE


def test_a_checkpoint_before_the_first_step_has_no_optimiser_and_resumes(tmp_path: Path, tiny_llama_dir: Path) -> None:
    checkpoint = tmp_path / "step_000000"
    straight = train(tmp_path, tiny_llama_dir, "bf16", save=checkpoint, more=2)
    resumed = train(tmp_path, tiny_llama_dir, "bf16", load=checkpoint, more=2)

    assert not read_info(checkpoint).optimizer
    assert (resumed["losses"], resumed["state"]) == (straight["losses"], straight["state"])


def test_a_distributed_optimiser_is_refused_rather_than_resumed_wrongly(tmp_path: Path, tiny_llama_dir: Path) -> None:
    result = train(tmp_path, tiny_llama_dir, "bf16", steps=1, save=tmp_path / "step_000001", distributed=True)

    assert "DistributedOptimizer are not supported" in result["error"]
    assert latest(tmp_path) is None


def test_a_checkpoint_of_another_model_is_refused_by_field(
    straight: dict[str, Any], tmp_path: Path, tiny_llama_dir: Path
) -> None:
    with pytest.raises(WeightsError, match=r"is of another model: .*family, head_dim.* differ"):
        export_checkpoint(straight["checkpoint"], tiny_llama_dir, tmp_path / "export", print)
    assert not (tmp_path / "export").exists()


def test_a_failed_write_leaves_no_checkpoint_and_names_path_and_space(tmp_path: Path, tiny_llama_dir: Path) -> None:
    root = tmp_path / "checkpoints"
    result = train(tmp_path, tiny_llama_dir, "bf16", steps=1, save=step_directory(root, 1), file_limit=100_000)

    assert str(step_directory(root, 1)) in result["error"]
    assert "MB are free" in result["error"]
    assert latest(root) is None
    assert list(root.iterdir()) == []


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_weights_return_from_torch_dist_bit_for_bit(tmp_path: Path, dtype: Any, tiny_qwen3_dir: Path) -> None:
    hf, torch_dist, export = tmp_path / "hf", tmp_path / "torch_dist", tmp_path / "export"
    model = AutoModelForCausalLM.from_pretrained(tiny_qwen3_dir, dtype={"bf16": "bfloat16", "fp32": "float32"}[dtype])
    model.save_pretrained(hf)
    convert_checkpoint(hf, torch_dist, dtype, print)
    result = export_checkpoint(torch_dist, hf, export, print)

    assert result.checksum == checksum_directory(hf)
    assert AutoModelForCausalLM.from_pretrained(export).dtype == model.dtype


def test_a_conversion_is_reused_until_its_files_change(tmp_path: Path, tiny_llama_dir: Path, tiny_qwen3_dir: Path) -> None:
    torch_dist = tmp_path / "torch_dist"

    assert not convert_checkpoint(tiny_llama_dir, torch_dist, "bf16", print).reused
    assert convert_checkpoint(tiny_llama_dir, torch_dist, "bf16", print).reused
    assert not convert_checkpoint(tiny_qwen3_dir, torch_dist, "bf16", print).reused


def test_a_model_that_cannot_be_converted_leaves_nothing(tmp_path: Path, tiny_llama_dir: Path) -> None:
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "model.safetensors").write_bytes((tiny_llama_dir / "model.safetensors").read_bytes())
    config = json.loads((tiny_llama_dir / "config.json").read_text())
    (broken / "config.json").write_text(json.dumps(config | {"intermediate_size": 256}))

    with pytest.raises(WeightsError, match=r"gate_proj.* has shape \[128, 64\], config.json asks for \[256, 64\]"):
        convert_checkpoint(broken, tmp_path / "out", "bf16", print)
    assert not (tmp_path / "out").exists()
