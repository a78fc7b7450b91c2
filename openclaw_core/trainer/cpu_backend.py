"""Makes megatron-core 0.16 run on CPU and gloo, without edits to megatron.

Megatron names the CUDA device literally in a few places that every training step passes. ``install`` redirects exactly
those to the CPU. Some of the changes are to torch itself and process-wide, so they belong into trainer processes only.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

_CPU = torch.device("cpu")
# Factories that megatron calls with device="cuda": loss and token counters, gradient norms, overflow flags.
_FACTORIES = ("zeros", "ones", "empty", "full", "empty_like", "tensor", "arange", "rand", "randn")
_installed = False


def install() -> None:
    """Redirect megatron's use of CUDA to the CPU; calling it again does nothing. Call it before megatron is imported."""
    global _installed
    if _installed:
        return
    _keep_device_contexts_working()
    _redirect_torch_cuda()
    for name in _FACTORIES:
        setattr(torch, name, _on_cpu(getattr(torch, name)))
    _compile_nothing()
    _redirect_rng()
    _installed = True


def installed() -> bool:
    """Whether this process carries the changes."""
    return _installed


def _keep_device_contexts_working() -> None:
    """``with torch.device(...)`` matches factories by identity against a set that torch builds once and caches.

    Built after the factories are wrapped, the set would hold the wrappers, the originals inside would no longer obey
    the context, and transformers' ``from_pretrained`` would return wrong weights without an error.
    """
    from torch.utils._device import _device_constructors

    _device_constructors()


def _redirect_torch_cuda() -> None:
    cuda: Any = torch.cuda
    cuda.current_device = lambda: _CPU  # megatron only ever passes it on as device=
    cuda.synchronize = lambda *_args, **_kwargs: None
    cuda.get_rng_state = lambda *_args, **_kwargs: torch.get_rng_state()
    cuda.set_rng_state = lambda state, *_args, **_kwargs: torch.set_rng_state(state)
    cuda.manual_seed = lambda seed: torch.manual_seed(seed)
    # The optimizers compare type() with the string 'torch.cuda.FloatTensor' and the like.
    tensor: Any = torch.Tensor
    tensor.type = _cuda_type(torch.Tensor.type)
    tensor.cuda = lambda self, *_args, **_kwargs: self  # checkpoints that ranks read together travel by it


def _redirect_rng() -> None:
    """Megatron's random streams take their state from these two; at dropout 0 nothing draws from them."""
    from megatron.core.tensor_parallel import random

    module: Any = random
    module._get_cuda_rng_state = lambda *_args, **_kwargs: torch.get_rng_state()
    module._set_cuda_rng_state = lambda state, *_args, **_kwargs: torch.set_rng_state(state)


def _compile_nothing() -> None:
    """Megatron's jit_fuser is torch.compile: its import takes seconds, a first compilation half a minute on a CPU."""
    module: Any = torch
    module.compile = lambda model=None, **_options: model or (lambda function: function)


def _on_cpu(factory: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    @functools.wraps(factory)
    def wrapped(*args: Any, **kwargs: Any) -> torch.Tensor:
        device = kwargs.get("device")
        if device is not None and torch.device(device).type == "cuda":
            kwargs["device"] = _CPU
        return factory(*args, **kwargs)

    return wrapped


def _cuda_type(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def wrapped(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        if isinstance(result, str) and not result.startswith("torch.cuda."):
            return result.replace("torch.", "torch.cuda.", 1)
        return result

    return wrapped
