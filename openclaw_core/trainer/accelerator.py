"""What a trainer rank needs to know about the machine it runs on. The one module that knows torch_npu and MindSpeed.

A rank calls ``Accelerator.prepare()`` before anything of megatron is imported, because MindSpeed and the CPU shim both
have to be in place by then. So modules that import megatron are imported inside the trainer's process, never at the
top of a module that is loaded elsewhere.

What is proven: the CPU. NPU and CUDA are **not proven**: no such device has run this code. The NPU's half is written from
the sources of MindSpeed and Megatron-LM that the Ascend image pins; its tests check order, names and text against
stand-ins. CUDA is there because megatron expects it, and has not even that.
"""

from __future__ import annotations

import importlib.util
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

from openclaw_core.config.schema import RunConfig
from openclaw_core.config.training import TrainConfig
from openclaw_core.errors import OpenClawError
from openclaw_core.weights.spec import Dtype, ModelSpec


class AcceleratorError(OpenClawError):
    """The process cannot be prepared for this accelerator; the message says what is missing or came too early."""


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory of this rank's device, of all processes that use it. Bytes."""

    used: int
    total: int


@dataclass(frozen=True, slots=True)
class Accelerator:
    """One kind of device, as torch, torch.distributed and Ray name it."""

    device: Literal["cpu", "npu", "cuda"]
    """torch device type; Ray shows a rank only its own device, so the index is always 0."""
    dist_backend: Literal["gloo", "hccl", "nccl"]
    ray_resource: str
    """Ray resource that one rank asks for."""
    visible_devices: str | None
    """Environment variable that limits a process to its devices; None where there are none to choose from."""
    builds_causal_mask: bool = False
    """The attention makes its own causal mask where it is given none; a dense one would be wrong (MindSpeed)."""
    dtypes: tuple[Dtype, ...] = ("bf16", "fp32")
    """What a model can be trained in."""

    def prepare(self, arguments: Mapping[str, Any] | None = None) -> None:
        """Make this process ready for megatron.

        ``arguments`` (``megatron_arguments``) matter on an NPU only: MindSpeed patches megatron by them, and again when it is
        called with other ones, as for another topology. The same ones, or None, leave the patches as they are.

        Raises:
            AcceleratorError: megatron is already imported, or the accelerator's packages are missing or too old.
        """
        if self not in _prepared:
            if "megatron.core" in sys.modules:
                raise AcceleratorError(
                    f"megatron.core was imported before the process was prepared for {self.device}; "
                    "call Accelerator.prepare() first and import modules that use megatron after it"
                )
            _PREPARE[self.device]()
            _prepared[self] = {}
        if self.device == "npu" and arguments is not None and dict(arguments) != _prepared[self]:
            _repatch(dict(arguments))
            _prepared[self] = dict(arguments)

    def environment(self, train: TrainConfig) -> dict[str, str]:
        """Environment variables of a rank's process; most are read when torch is imported, so set them before it starts.

        HCCL waits for half an hour by default. Its two deadlines follow ``train.collective_s``, within what HCCL allows.
        """
        common = {
            "OMP_NUM_THREADS": str(train.threads),
            # Threads that wait in a loop take the cores from the process whose turn it is.
            "OMP_WAIT_POLICY": "passive",
            # megatron's jit_fuser is torch.compile; a first compilation takes half a minute on a CPU.
            "TORCHDYNAMO_DISABLE": "1",
            # megatron overlaps communication by the order in which kernels are launched.
            "CUDA_DEVICE_MAX_CONNECTIONS": "1",
            # prepare() imports the device's backend, in its order; `import torch` must not do it, or fail over it.
            "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
        }
        if self.device != "npu":
            return common
        return common | {
            "HCCL_CONNECT_TIMEOUT": str(_seconds(train.collective_s, 120, 7200)),
            "HCCL_EXEC_TIMEOUT": str(_seconds(train.collective_s, 68, 17340)),
            # Micro-batches differ in length; blocks of fixed size would fragment.
            "PYTORCH_NPU_ALLOC_CONF": "expandable_segments:True",
        }

    def memory(self) -> Memory:
        """Used and total memory of the rank's device; on a CPU that of the host. ``prepare`` must have been called."""
        if self.device == "cpu":
            import psutil

            host = psutil.virtual_memory()
            return Memory(used=host.total - host.available, total=host.total)
        import torch

        free, total = getattr(torch, self.device).mem_get_info()
        return Memory(used=total - free, total=total)

    def seed(self, seed: int) -> None:
        """Seed torch and megatron's per-rank random streams; model parallelism must be initialised."""
        import torch
        from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed

        torch.manual_seed(seed)
        model_parallel_cuda_manual_seed(seed, force_reset_rng=True)


_prepared: dict[Accelerator, dict[str, Any]] = {}
"""With the arguments that MindSpeed was last called with."""

CPU = Accelerator(device="cpu", dist_backend="gloo", ray_resource="CPU", visible_devices=None)
NPU = Accelerator(
    device="npu",
    dist_backend="hccl",
    ray_resource="NPU",
    visible_devices="ASCEND_RT_VISIBLE_DEVICES",
    builds_causal_mask=True,
)
CUDA = Accelerator(device="cuda", dist_backend="nccl", ray_resource="GPU", visible_devices="CUDA_VISIBLE_DEVICES")


def cpu() -> Accelerator:
    """The development backend: megatron on gloo."""
    return CPU


def detect() -> Accelerator:
    """NPU where torch_npu is installed (it is only in the Ascend image), else CUDA where torch sees one, else CPU."""
    if importlib.util.find_spec("torch_npu"):
        return NPU
    import torch

    return CUDA if torch.cuda.is_available() else CPU


def megatron_arguments(
    config: RunConfig, spec: ModelSpec, *, tensor_parallel: int | None = None, world_size: int | None = None
) -> dict[str, Any]:
    """The run's arguments under the names of Megatron's argument parser, for ``prepare``.

    Those that decide what MindSpeed patches, or that it compares with the model's configuration; it copies all of them into
    every TransformerConfig. ``tensor_parallel`` and ``world_size`` are those of the ranks' group, by default the trainer's.
    """
    train = config.train
    ranks = tensor_parallel or train.tensor_parallel
    world = world_size or train.tensor_parallel * train.data_parallel
    return {
        "num_layers": spec.layers,
        "num_attention_heads": spec.heads,
        "position_embedding_type": "rope",
        "transformer_impl": "local",
        "bf16": config.model.dtype == "bf16",
        "tensor_model_parallel_size": ranks,
        "pipeline_model_parallel_size": 1,
        "context_parallel_size": 1,
        "data_parallel_size": world // ranks,
        "world_size": world,
        "sequence_parallel": train.sequence_parallel and ranks > 1,
        "use_distributed_optimizer": train.distributed_optimizer,
        "accumulate_allreduce_grads_in_fp32": True,
        "attention_softmax_in_fp32": True,
        "use_flash_attn": True,
        **recompute_options(train.recompute),
    }


def recompute_options(recompute: Literal["none", "full"]) -> dict[str, Any]:
    """The same names in Megatron's argument parser and in its TransformerConfig. full: of each layer only the input is kept."""
    if recompute == "none":
        return {"recompute_granularity": None, "recompute_method": None, "recompute_num_layers": None}
    return {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}


def _prepare_cpu() -> None:
    from openclaw_core.trainer import cpu_backend

    cpu_backend.install()


def _prepare_cuda() -> None:
    """Not proven."""
    import torch

    torch.cuda.set_device(0)


def _prepare_npu() -> None:
    """Not proven. The import of the adaptor patches torch and megatron at once, with MindSpeed's defaults."""
    try:
        import torch_npu  # noqa: F401  # pyright: ignore[reportMissingImports]

        with _no_command_line():
            import mindspeed.megatron_adaptor  # noqa: F401  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise AcceleratorError(f"cannot import what an NPU needs ({error}); run inside the project's Ascend image") from error
    import torch

    torch.npu.set_device(0)  # pyright: ignore[reportAttributeAccessIssue]


def _repatch(arguments: dict[str, Any]) -> None:
    from mindspeed import megatron_adaptor  # pyright: ignore[reportMissingImports]

    if not hasattr(megatron_adaptor, "repatch"):
        raise AcceleratorError(
            "mindspeed.megatron_adaptor has no repatch(); install MindSpeed at the commit that the project's Ascend image pins"
        )
    megatron_adaptor.repatch(arguments)


@contextmanager
def _no_command_line() -> Iterator[None]:
    """MindSpeed takes its first arguments from sys.argv, which here are those of Ray's worker or of a command of ours."""
    saved = sys.argv
    sys.argv = saved[:1]
    try:
        yield
    finally:
        sys.argv = saved


def _seconds(wanted: float, least: int, most: int) -> int:
    return min(most, max(least, math.ceil(wanted)))


_PREPARE: dict[str, Callable[[], None]] = {"cpu": _prepare_cpu, "npu": _prepare_npu, "cuda": _prepare_cuda}
