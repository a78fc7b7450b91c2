"""One rank of test_recompute.py: gradients with and without recomputation, and with the attention's own causal mask.

Usage: python -m tests.integration.recompute_child HF_DIR OUT_FILE RANK WORLD_SIZE PORT
"""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Any

import torch

from tests.children import tcp_store


def main(hf: str, out: str, rank: str, world_size: str, port: str) -> None:
    from openclaw_core.trainer import accelerator

    cpu = accelerator.cpu()
    cpu.prepare()
    from openclaw_core.trainer.model import ModelError, ModelSpec, build_gpt, hidden_states, init_parallel, object_group

    torch.set_num_threads(1)
    store = tcp_store(world_size, port)
    init_parallel(cpu, tensor_parallel=int(world_size), rank=int(rank), world_size=int(world_size), store=store, timeout_s=120)
    spec = ModelSpec.from_hf(Path(hf))
    parallel = int(world_size) > 1
    ids = torch.randint(3, spec.vocab_size, (2, 24), generator=torch.Generator().manual_seed(1))
    runs: dict[str, Any] = {}
    kinds = {"none": cpu, "full": cpu, "own mask": dataclasses.replace(cpu, builds_causal_mask=True)}
    for name, device in kinds.items():
        recompute = "full" if name == "full" else "none"
        _, gpt = build_gpt(spec, "fp32", sequence_parallel=parallel, recompute=recompute, accelerator=device)
        runs[name] = run(gpt, ids, hidden_states)
    refused = []
    for attempt in (
        lambda: hidden_states(gpt, ids[:, :23]),
        lambda: build_gpt(spec, "bf16", accelerator=dataclasses.replace(cpu, dtypes=("fp32",))),
    ):
        try:
            attempt()
        except ModelError as error:
            refused.append(str(error))
    sizes: list[Any] = [None] * int(world_size)
    torch.distributed.all_gather_object(sizes, int(rank), group=object_group())
    torch.save({"runs": runs, "refused": refused, "ranks": sizes}, f"{out}.{rank}")


def run(gpt, ids: torch.Tensor, hidden_states) -> dict[str, Any]:
    """Loss, gradients, forward passes of the first layer, bytes that autograd keeps, and whether a mask was given."""
    weights = torch.Generator().manual_seed(2)
    for parameter in gpt.parameters():
        parameter.data.normal_(0, 0.2, generator=weights)
    forwards, masks, kept = [], [], {}
    gpt.register_forward_pre_hook(lambda _, arguments: masks.append(arguments[2]))
    gpt.decoder.layers[0].register_forward_hook(lambda *_: forwards.append(1))

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = hidden_states(gpt, ids).square().mean()
    saved = sum(kept.values())
    loss.backward()
    gradients = {name: p.grad.clone() for name, p in gpt.named_parameters() if p.grad is not None}
    given = masks[0] is not None
    return {"loss": loss.item(), "gradients": gradients, "forwards": len(forwards), "saved": saved, "mask": given}


if __name__ == "__main__":
    main(*sys.argv[1:])
