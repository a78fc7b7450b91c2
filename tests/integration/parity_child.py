"""One rank of test_parity_transformers.py: log-probs and gradients of a converted checkpoint by megatron.

Usage: python -m tests.integration.parity_child HF_DIR CHECKPOINT REQUEST_FILE OUT_FILE RANK WORLD_SIZE PORT
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from tests.children import tcp_store


def main(hf: str, checkpoint: str, request_file: str, out: str, rank: str, world_size: str, port: str) -> None:
    from openclaw_core.trainer import accelerator

    cpu = accelerator.cpu()
    cpu.prepare()
    from megatron.core.tensor_parallel import gather_from_tensor_model_parallel_region

    from openclaw_core.trainer.checkpoint import load
    from openclaw_core.trainer.model import ModelSpec, build_gpt, hidden_states, init_parallel, output_weight

    torch.set_num_threads(1)
    request = torch.load(request_file)
    ids, sequence_parallel = request["ids"], request["sequence_parallel"]
    store = tcp_store(world_size, port)
    init_parallel(cpu, tensor_parallel=int(world_size), rank=int(rank), world_size=int(world_size), store=store, timeout_s=120)
    spec = ModelSpec.from_hf(Path(hf))
    _, gpt = build_gpt(spec, "fp32", sequence_parallel=sequence_parallel)
    load(Path(checkpoint), spec, gpt)
    with torch.set_grad_enabled(request["gradients"]):
        hidden = hidden_states(gpt, ids)
        logits = gather_from_tensor_model_parallel_region(torch.nn.functional.linear(hidden, output_weight(gpt)))
        logprobs = logits[..., : spec.vocab_size].transpose(0, 1)[:, :-1].log_softmax(-1).gather(-1, ids[:, 1:, None])[..., 0]
    answer = {"logprobs": logprobs.detach()}
    if request["gradients"]:
        logprobs.mean().backward()
        answer["gradients"] = whole_gradients(gpt, spec, sequence_parallel)
    torch.save(answer, f"{out}.{rank}")


def whole_gradients(gpt, spec, sequence_parallel: bool) -> dict[str, torch.Tensor]:
    """Under HF names; gradients of norms, which see a part of heads or tokens, are summed as finalize_model_grads does."""
    from megatron.core import parallel_state

    from openclaw_core.weights.names import to_hf

    group, ranks = parallel_state.get_tensor_model_parallel_group(), parallel_state.get_tensor_model_parallel_world_size()
    partial = ("q_layernorm", "k_layernorm", *(["norm"] if sequence_parallel else []))
    gradients = {name: parameter.grad for name, parameter in gpt.named_parameters()}
    for name, gradient in gradients.items():
        if any(part in name for part in partial):
            torch.distributed.all_reduce(gradient, group=group)
    shards: list[dict[str, torch.Tensor]] = [{}] * ranks
    torch.distributed.all_gather_object(shards, gradients, group=group)
    return dict(to_hf(shards, spec))


if __name__ == "__main__":
    main(*sys.argv[1:])
