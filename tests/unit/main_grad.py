"""A parameter under the rule of Megatron's DDP."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def megatron_parameter(value: Tensor, dtype: torch.dtype) -> Any:
    """A parameter with a zero ``main_grad`` of ``dtype``, to which the autograd gradient is added after each backward unless
    it is flagged as added. ``hook_calls`` says of each call whether there was an autograd gradient."""
    parameter: Any = torch.nn.Parameter(value.detach().clone())
    parameter.main_grad = torch.zeros_like(parameter, dtype=dtype)
    parameter.grad_added_to_main_grad = False
    parameter.hook_calls = []

    def hook(parameter: Any) -> None:
        parameter.hook_calls.append(parameter.grad is not None)
        if parameter.grad is not None and not parameter.grad_added_to_main_grad:
            parameter.main_grad.add_(parameter.grad)
        parameter.grad = None

    parameter.register_post_accumulate_grad_hook(hook)
    return parameter
