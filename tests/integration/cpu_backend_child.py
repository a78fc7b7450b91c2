"""Child process of test_cpu_backend.py: transformers in a process that carries the CPU shim.

Usage: python -m tests.integration.cpu_backend_child HF_DIR OUT_FILE RANK WORLD_SIZE PORT
"""

from __future__ import annotations

import sys

import torch


def main(hf: str, out: str, *_rank: str) -> None:
    from openclaw_core.trainer import accelerator

    accelerator.cpu().prepare()
    accelerator.cpu().prepare()
    from transformers import AutoModelForCausalLM

    ids = torch.arange(3, 40)[None]
    logits = AutoModelForCausalLM.from_pretrained(hf, dtype=torch.float32)(ids).logits.detach()
    with torch.device("meta"):
        meta = torch.zeros(2).device.type
    torch.save({"ids": ids, "logits": logits, "meta": meta, "cuda": torch.zeros(2, device="cuda").device.type}, out)


if __name__ == "__main__":
    main(*sys.argv[1:])
