"""AdamW by Megatron, its learning-rate schedule, and the guard against non-finite gradients (ALGORITHM 11 and 13)."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist

from openclaw_core.config.training import OptimizerConfig


def build_optimizer(model: Any, config: OptimizerConfig, *, bf16: bool, distributed: bool) -> Any:
    """Megatron's optimiser over a DDP-wrapped model: fp32 masters in bf16 mode, no weight decay on 1-D parameters.

    ``distributed``: masters and moments are shared out over the data-parallel ranks.
    """
    from megatron.core.optimizer import OptimizerConfig as MegatronOptimizerConfig
    from megatron.core.optimizer import get_megatron_optimizer

    return get_megatron_optimizer(
        MegatronOptimizerConfig(
            optimizer="adam",
            lr=config.lr,
            weight_decay=config.weight_decay,
            adam_beta1=config.betas[0],
            adam_beta2=config.betas[1],
            adam_eps=config.eps,
            clip_grad=config.clip_grad,
            bf16=bf16,
            params_dtype=torch.bfloat16 if bf16 else torch.float32,
            use_distributed_optimizer=distributed,
        ),
        [model],
    )


def learning_rate(config: OptimizerConfig, step: int, steps: int) -> float:
    """The rate at ``step`` (1-based) of ``steps``: linear warm-up, then constant, linear to 0 or cosine to 0."""
    if step <= config.warmup_steps:
        return config.lr * step / config.warmup_steps
    if config.schedule == "constant":
        return config.lr
    done = (step - 1 - config.warmup_steps) / max(1, steps - config.warmup_steps)
    return config.lr * (1 - done if config.schedule == "linear" else 0.5 * (1 + math.cos(math.pi * done)))


def set_learning_rate(optimizer: Any, rate: float) -> None:
    """Give every parameter group the same rate."""
    for group in optimizer.param_groups:
        group["lr"] = rate


def finite(buffers: Iterable[torch.Tensor]) -> bool:
    """True where every value of this rank's gradient buffers is finite."""
    return all(bool(torch.isfinite(buffer.sum())) for buffer in buffers)


def not_finite(named: Iterable[tuple[str, torch.nn.Parameter]]) -> list[str]:
    """Names of this rank's parameters that hold an inf or a nan."""
    names, norms = zip(*((name, torch.linalg.vector_norm(weight.detach(), torch.inf)) for name, weight in named), strict=True)
    largest = torch.stack([norm.float() for norm in norms])
    return [name for name, fine in zip(names, torch.isfinite(largest).tolist(), strict=True) if not fine]


def agreed(flag: bool, group: dist.ProcessGroup | None, device: str = "cpu") -> bool:
    """True where the flag is set on every rank of ``group``, so that all of them skip or none does; None: this rank alone."""
    if group is None:
        return flag
    value = torch.tensor([float(flag)], device=device)
    dist.all_reduce(value, op=dist.ReduceOp.MIN, group=group)
    return bool(value.item())
