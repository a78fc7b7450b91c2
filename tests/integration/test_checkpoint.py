"""Training goes on bit for bit from a checkpoint, and a checkpoint is whole or absent: one rank."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from openclaw_core.trainer.retention import latest, prune, read_info, step_directory
from openclaw_core.weights.checksum import checksum_directory
from openclaw_core.weights.convert import convert_checkpoint
from openclaw_core.weights.errors import WeightsError
from openclaw_core.weights.export import export_checkpoint
from tests.children import run_ranks
from tests.models import CHAT_TEMPLATE

CHILD = "tests.integration.checkpoint_child"


def run(scenario: str, hf: Path, dtype: str, root: Path) -> Any:
    return json.loads(run_ranks(CHILD, [scenario, hf, dtype, root])[0].splitlines()[-1])


@pytest.fixture(scope="module", params=["bf16", "fp32"])
def resumed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, tiny_qwen3_dir: Path) -> dict[str, Any]:
    """Four steps in one process, and what another process makes of its checkpoints."""
    root = tmp_path_factory.mktemp("resumed") / "checkpoints"
    straight = run("straight", tiny_qwen3_dir, request.param, root)
    return straight | run("resume", tiny_qwen3_dir, request.param, root) | {"root": root}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, tiny_qwen3_dir: Path) -> Path:
    """A training checkpoint in bf16, next to which a process was killed while it wrote another."""
    root = tmp_path_factory.mktemp("trained") / "checkpoints"
    command = [sys.executable, "-W", "ignore", "-m", CHILD, "killed", str(tiny_qwen3_dir), "bf16", str(root), "0", "1", "0"]
    assert subprocess.run(command, timeout=300, check=False).returncode == -signal.SIGKILL
    return step_directory(root, 2)


def test_training_resumes_bit_for_bit(resumed: dict[str, Any]) -> None:
    assert latest(resumed["root"]) == step_directory(resumed["root"], 2)
    assert resumed["exact"] == {"meta": {"step": 2}} | resumed["late"]


def test_weights_alone_do_not_resume_the_optimiser(resumed: dict[str, Any]) -> None:
    """The comparison above can fail: without moments and random streams training goes another way."""
    assert resumed["weights"]["losses"] != resumed["late"]["losses"]
    assert resumed["weights"]["state"] != resumed["late"]["state"]


def test_a_checkpoint_before_the_first_step_has_no_optimiser_and_resumes(resumed: dict[str, Any]) -> None:
    assert not read_info(step_directory(resumed["root"], 0)).optimizer
    assert resumed["from 0"]["losses"] == resumed["early"] + resumed["late"]["losses"]
    assert resumed["from 0"]["state"] == resumed["late"]["state"]


def test_a_failed_write_leaves_no_checkpoint_and_names_path_and_space(resumed: dict[str, Any]) -> None:
    assert f"{step_directory(resumed['root'], 9)} cannot be written: [Errno 27] File too large" in resumed["error"]
    assert "MB are free" in resumed["error"]
    assert sorted(path.name for path in resumed["root"].iterdir()) == ["step_000000", "step_000002"]


def test_a_process_killed_while_it_writes_leaves_no_checkpoint(trained: Path) -> None:
    root = trained.parent
    unfinished = root / ".step_000004.partial"

    assert sum(file.stat().st_size for file in unfinished.iterdir()) > 100_000
    assert latest(root) == trained
    prune(root, keep_last=1)
    assert list(root.iterdir()) == [trained]


def test_a_training_checkpoint_is_exported_for_transformers(trained: Path, tmp_path: Path, tiny_qwen3_dir: Path) -> None:
    result = export_checkpoint(trained, tiny_qwen3_dir, tmp_path / "export", print)

    assert result.checksum != checksum_directory(tiny_qwen3_dir)
    assert AutoModelForCausalLM.from_pretrained(result.path).dtype == torch.bfloat16
    assert AutoTokenizer.from_pretrained(result.path).chat_template == CHAT_TEMPLATE


def test_a_checkpoint_of_another_model_is_refused_by_field(trained: Path, tmp_path: Path, tiny_llama_dir: Path) -> None:
    with pytest.raises(WeightsError, match=r"is of another model: .*family, head_dim.* differ"):
        export_checkpoint(trained, tiny_llama_dir, tmp_path / "export", print)
    assert not (tmp_path / "export").exists()


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_weights_return_from_torch_dist_bit_for_bit(tmp_path: Path, dtype: Any, tiny_qwen3_dir: Path) -> None:
    hf, torch_dist, export = tmp_path / "hf", tmp_path / "torch_dist", tmp_path / "export"
    model = AutoModelForCausalLM.from_pretrained(tiny_qwen3_dir, dtype={"bf16": "bfloat16", "fp32": "float32"}[dtype])
    model.save_pretrained(hf)
    convert_checkpoint(hf, torch_dist, dtype, print)
    result = export_checkpoint(torch_dist, hf, export, print)

    assert result.checksum == checksum_directory(hf)
    assert AutoModelForCausalLM.from_pretrained(export).dtype == model.dtype


def test_a_conversion_is_reused_until_its_files_or_the_format_change(
    tmp_path: Path, tiny_llama_dir: Path, tiny_qwen3_dir: Path
) -> None:
    torch_dist = tmp_path / "torch_dist"

    assert not convert_checkpoint(tiny_llama_dir, torch_dist, "bf16", print).reused
    assert convert_checkpoint(tiny_llama_dir, torch_dist, "bf16", print).reused
    manifest = json.loads((torch_dist / "meta.json").read_text())
    part = torch_dist / min(manifest["parts"])
    part.write_bytes(part.read_bytes()[:-1] + b"?")
    assert not convert_checkpoint(tiny_llama_dir, torch_dist, "bf16", print).reused
    del manifest["parts"]
    (torch_dist / "meta.json").write_text(json.dumps(manifest))
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
