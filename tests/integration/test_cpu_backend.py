"""The CPU shim, in processes of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

from tests.children import DEADLINE_S, run_ranks


def test_transformers_still_loads_the_right_model_and_megatrons_cuda_is_the_cpu(tmp_path: Path, tiny_llama_dir: Path) -> None:
    out = tmp_path / "out.pt"
    run_ranks("tests.integration.cpu_backend_child", [tiny_llama_dir, out])
    result = torch.load(out)
    expected = AutoModelForCausalLM.from_pretrained(tiny_llama_dir, dtype=torch.float32)(result["ids"]).logits

    assert torch.equal(result["logits"], expected)
    assert (result["meta"], result["cuda"]) == ("meta", "cpu")


def test_preparing_after_megatron_is_refused() -> None:
    code = "import megatron.core; from openclaw_core.trainer.accelerator import cpu; cpu().prepare()"
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=DEADLINE_S, check=False)

    assert process.returncode == 1
    assert "megatron.core was imported before the process was prepared for cpu" in process.stderr
