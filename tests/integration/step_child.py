"""Child process of test_colocated_step.py: the trainer's own forward, loss and backward, gradients under HF names.

Usage: python -m tests.integration.step_child HF_DIR START_HF_DIR SAMPLES OUT MICRO_BATCH_SIZE LOSS_OVERRIDES_JSON
"""

from __future__ import annotations

import json
import pickle
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file


def main(hf: str, start: str, samples_file: str, out: str, size: str, overrides: str) -> None:
    from openclaw_core.trainer import accelerator

    accelerator.cpu().prepare()
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads

    from openclaw_core.config import load_config
    from openclaw_core.losses import add_sums, finish_metrics
    from openclaw_core.trainer.model import ModelSpec, build_gpt, init_parallel
    from openclaw_core.trainer.packing import micro_batches
    from openclaw_core.trainer.step import ColocatedStep
    from openclaw_core.weights.names import to_hf, to_megatron

    torch.set_num_threads(1)
    init_parallel(accelerator.cpu())
    spec = ModelSpec.from_hf(Path(hf))

    def build(directory: str):
        transformer, gpt = build_gpt(spec, "fp32")
        weights = load_file(Path(directory) / "model.safetensors")
        own = dict(gpt.named_parameters())
        for name, tensor in to_megatron(lambda name: weights[name].float(), spec).items():
            own[name].data.copy_(tensor)
        return transformer, gpt

    transformer, gpt = build(hf)
    model = DistributedDataParallel(transformer, DistributedDataParallelConfig(grad_reduce_in_fp32=True), gpt)
    reference = build(start)[1].requires_grad_(False)
    step = ColocatedStep(model, reference, spec, load_config("local-cpu", json.loads(overrides)).loss)
    samples, probe = pickle.loads(Path(samples_file).read_bytes())
    batches = micro_batches(samples, int(size))
    results = []
    for i, batch in enumerate(batches):
        result = step(batch, len(samples), probe, torch.Generator().manual_seed(0))
        if i < len(batches) - 1:
            with model.no_sync():
                result.loss.backward()
        else:
            result.loss.backward()
        results.append(result)
    finalize_model_grads([model])
    gradients = dict(to_hf([{name: p.main_grad for name, p in gpt.named_parameters()}], spec))
    sums = add_sums([result.sums for result in results])
    answer = {
        "loss": sum(float(result.loss) for result in results),
        "gradients": {name: gradient.clone() for name, gradient in gradients.items()},
        "metrics": finish_metrics(sums, single_step=True),
        "parity": float(sums["parity"] / sums["parity_tokens"]),
        "masked": {name: reason.value for result in results for name, reason in result.masked.items()},
    }
    torch.save(answer, out)


if __name__ == "__main__":
    main(*sys.argv[1:])
