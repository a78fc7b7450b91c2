"""One process of test_checkpoint.py: train a tiny model, save, resume.

Usage: python -m tests.integration.checkpoint_child REQUEST_FILE RANK WORLD_SIZE PORT. The request is JSON: hf, dtype, load
(checkpoint or null), optimizer (load its state too), steps (before saving), save (checkpoint or null), more (steps after
saving), file_limit (bytes a file may grow to, or null), distributed (megatron's DistributedOptimizer). Prints JSON: losses,
meta, state (a digest) or error.
"""

from __future__ import annotations

import hashlib
import json
import resource
import sys
from pathlib import Path
from typing import Any

import torch


def main(request_file: str, rank: str, world_size: str, port: str) -> None:
    from openclaw_core.trainer import accelerator

    accelerator.cpu().prepare()
    from openclaw_core.trainer import checkpoint
    from openclaw_core.trainer.model import ModelSpec, init_parallel

    torch.set_num_threads(1)
    request = json.loads(Path(request_file).read_text())
    spec = ModelSpec.from_hf(Path(request["hf"]))
    init_parallel(accelerator.cpu(), seed=3)
    trainee = Trainee(spec, request)
    answer: dict[str, Any] = {"losses": [], "meta": None, "error": None}
    if request["load"]:
        optimizer = trainee.optimizer if request["optimizer"] else None
        answer["meta"] = checkpoint.load(Path(request["load"]), spec, trainee.gpt, optimizer)
        if optimizer is None:
            trainee.optimizer.reload_model_params()
    answer["losses"] += [trainee.step() for _ in range(request["steps"])]
    if request["save"]:
        if request["file_limit"]:
            resource.setrlimit(resource.RLIMIT_FSIZE, (request["file_limit"], resource.RLIM_INFINITY))
        try:
            checkpoint.save(Path(request["save"]), spec, trainee.gpt, trainee.optimizer, {"step": request["steps"]})
        except checkpoint.CheckpointError as error:
            answer["error"] = str(error)
    if not answer["error"]:
        answer["losses"] += [trainee.step() for _ in range(request["more"])]
        answer["state"] = trainee.digest()
    sys.stdout.write(json.dumps(answer))


class Trainee:
    """A model in DDP with megatron's Adam, trained on random ids drawn from the global random stream."""

    def __init__(self, spec, request: dict[str, Any]) -> None:
        from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
        from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
        from megatron.core.transformer.module import Float16Module

        from openclaw_core.trainer.model import TORCH_DTYPES, build_gpt
        from openclaw_core.weights.hf_files import load_hf

        dtype, bf16 = request["dtype"], request["dtype"] == "bf16"
        config, self.gpt = build_gpt(spec, dtype)
        if request["load"] is None:
            load_hf(self.gpt, Path(request["hf"]), spec)
        else:
            # Whatever the checkpoint does not restore must show.
            for parameter in self.gpt.parameters():
                parameter.data.fill_(float("nan"))
        module = Float16Module(config, self.gpt) if bf16 else self.gpt
        distributed = request["distributed"]
        ddp = DistributedDataParallelConfig(grad_reduce_in_fp32=True, use_distributed_optimizer=distributed)
        self.model = DistributedDataParallel(config, ddp, module)
        settings = OptimizerConfig(
            optimizer="adam",
            lr=1e-3,
            weight_decay=0.1,
            clip_grad=1.0,
            bf16=bf16,
            params_dtype=TORCH_DTYPES[dtype],
            use_distributed_optimizer=distributed,
        )
        self.optimizer: Any = get_megatron_optimizer(settings, [self.model])
        self.vocab_size = spec.vocab_size

    def step(self) -> float:
        from megatron.core.distributed import finalize_model_grads

        from openclaw_core.trainer.model import hidden_states, output_weight

        ids = torch.randint(3, self.vocab_size, (2, 24))
        self.model.zero_grad_buffer()
        self.optimizer.zero_grad()
        logits = torch.nn.functional.linear(hidden_states(self.model, ids), output_weight(self.gpt)).float()
        logprobs = logits[..., : self.vocab_size].transpose(0, 1)[:, :-1].log_softmax(-1).gather(-1, ids[:, 1:, None])
        loss = -logprobs.mean()
        loss.backward()
        finalize_model_grads([self.model])
        self.optimizer.step()
        return loss.item()

    def digest(self) -> str:
        """Over parameters, fp32 masters, moments and step counts."""
        states = self.optimizer.chained_optimizers[0].optimizer.state
        digest = hashlib.sha256()
        for parameter in self.gpt.parameters():
            main = getattr(parameter, "main_param", parameter)
            state = states[main]
            for tensor in (parameter, main, state["exp_avg"], state["exp_avg_sq"], state["step"]):
                digest.update(tensor.detach().float().numpy().tobytes())
        return digest.hexdigest()


if __name__ == "__main__":
    main(*sys.argv[1:])
