"""What a trainer rank needs to know about the machine it runs on. The one module that knows torch_npu and MindSpeed.

A rank calls ``Accelerator.prepare()`` before anything of megatron is imported, because MindSpeed and the CPU shim both
have to be in place by then. So modules that import megatron are imported inside the trainer's process, never at the
top of a module that is loaded elsewhere.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from dataclasses import dataclass
from typing import Literal

from openclaw_core.errors import OpenClawError


class AcceleratorError(OpenClawError):
    """The process cannot be prepared for this accelerator; the message says what is missing or came too early."""


@dataclass(frozen=True, slots=True)
class Accelerator:
    """One kind of device, as torch, torch.distributed and Ray name it."""

    device: Literal["cpu", "npu"]
    """torch device type; Ray shows a rank only its own device, so the index is always 0."""
    dist_backend: Literal["gloo", "hccl"]
    ray_resource: str
    """Ray resource that one rank asks for."""
    visible_devices: str | None
    """Environment variable that limits a process to its devices; None where there are none to choose from."""

    def prepare(self) -> None:
        """Make this process ready for megatron; calling it again does nothing.

        Raises:
            AcceleratorError: megatron is already imported, or the accelerator's packages are missing.
        """
        if self in _prepared:
            return
        if "megatron.core" in sys.modules:
            raise AcceleratorError(
                f"megatron.core was imported before the process was prepared for {self.device}; "
                "call Accelerator.prepare() first and import modules that use megatron after it"
            )
        if self.device == "npu":
            _prepare_npu()
        else:
            from openclaw_core.trainer import cpu_backend

            cpu_backend.install()
        _prepared.add(self)

    def seed(self, seed: int) -> None:
        """Seed torch and megatron's per-rank random streams; model parallelism must be initialised."""
        import torch
        from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed

        torch.manual_seed(seed)
        model_parallel_cuda_manual_seed(seed, force_reset_rng=True)


_prepared: set[Accelerator] = set()

CPU = Accelerator(device="cpu", dist_backend="gloo", ray_resource="CPU", visible_devices=None)
NPU = Accelerator(device="npu", dist_backend="hccl", ray_resource="NPU", visible_devices="ASCEND_RT_VISIBLE_DEVICES")


def cpu() -> Accelerator:
    """The development backend: megatron on gloo."""
    return CPU


def detect() -> Accelerator:
    """NPU where torch_npu is installed (it is only in the Ascend image), else CPU."""
    return NPU if importlib.util.find_spec("torch_npu") else CPU


def _prepare_npu() -> None:
    """Not proven: written from MindSpeed's documentation, no NPU has run it yet."""
    for module in ("torch_npu", "mindspeed.megatron_adaptor"):
        try:
            importlib.import_module(module)
        except ImportError as error:
            raise AcceleratorError(f"cannot import {module} ({error}); run inside the project's Ascend image") from error
    import torch

    torch.npu.set_device(0)  # pyright: ignore[reportAttributeAccessIssue]
