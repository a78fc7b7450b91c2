"""Child process of test_planning_*.py: what the real megatron objects hold, and what a real pass takes. Prints JSON.

Usage: python -m tests.integration.planning_child held SPECS_JSON TENSOR_PARALLEL RANK WORLD_SIZE PORT
       python -m tests.integration.planning_child kept SPECS_JSON TENSOR_PARALLEL SEQUENCES LENGTH RANK WORLD_SIZE PORT
       python -m tests.integration.planning_child head SPEC_JSON DTYPE ROWS RANK WORLD_SIZE PORT
       python -m tests.integration.planning_child peak SPEC_JSON DTYPE RECOMPUTE SEQUENCES LENGTH RESPONSE RANK WORLD_SIZE PORT
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable
from itertools import product
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from openclaw_core.trainer import accelerator
from openclaw_core.weights.spec import Dtype, ModelSpec
from tests.children import tcp_store


def main(what: str, *arguments: str) -> None:
    *own, rank, world_size, port = arguments
    accelerator.cpu().prepare()
    from openclaw_core.trainer.model import init_parallel

    torch.set_num_threads(1 if int(world_size) > 1 else 2)
    tensor_parallel = 1 if what in ("head", "peak") else int(own[1])
    store = tcp_store(world_size, port) if int(world_size) > 1 else None
    init_parallel(accelerator.cpu(), tensor_parallel=tensor_parallel, rank=int(rank), world_size=int(world_size), store=store)
    sys.stdout.write(json.dumps({"held": held, "kept": kept, "head": head_alone, "peak": peak}[what](*own)))


def held(specs: str, _tensor_parallel: str) -> list[dict[str, int]]:
    """Bytes of parameters, gradients and optimiser after one step; a row per spec, dtype and kind of optimiser."""
    from openclaw_core.trainer.distributed_adam import parts

    rows: list[dict[str, int]] = []
    for spec, dtype, distributed in product(_specs(specs), ("bf16", "fp32"), (False, True)):
        gpt, model, optimizer = _trainer(spec, dtype, distributed)
        for buffer in model.buffers:
            buffer.grad_data.fill_(1e-3)
        assert optimizer.step()[0]
        parameters = _storages(gpt.parameters())
        state: dict[int, int] = {}
        for part in parts(optimizer):
            masters = [p for group in part.optimizer.param_groups for p in group["params"]]
            state |= _storages([*masters, *(x for values in part.optimizer.state.values() for x in values.values())])
        own = {pointer: size for pointer, size in state.items() if pointer not in parameters}
        gradients = _storages(buffer.grad_data for buffer in model.buffers)
        rows.append({name: sum(x.values()) for name, x in _named(parameters, gradients, own).items()})
    return rows


def kept(specs: str, tensor_parallel: str, sequences: str, length: str) -> list[dict[str, int]]:
    """Bytes that a forward pass leaves for its backward pass; a row per spec, dtype and recompute."""
    rows: list[dict[str, int]] = []
    for spec, dtype, recompute in product(_specs(specs), ("bf16", "fp32"), ("none", "full")):
        gpt, model = _model(spec, dtype, recompute, sequence_parallel=int(tensor_parallel) > 1)
        parameters, found, alive = _storages(gpt.parameters()), dict[int, int](), []

        def note(tensor: Tensor, found: dict[int, int] = found, alive: list[Tensor] = alive) -> Tensor:
            found.update(_storages([tensor]))
            alive.append(tensor)  # so that no other tensor gets its address
            return tensor

        from openclaw_core.trainer.model import hidden_states

        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            hidden_states(model, torch.zeros(int(sequences), int(length), dtype=torch.long))
        rows.append({"kept": sum(size for pointer, size in found.items() if pointer not in parameters)})
    return rows


def head_alone(spec_json: str, dtype: Dtype, rows: str) -> dict[str, int]:
    """The most that the head's forward and backward pass adds, hidden states, matrix and its main_grad there before."""
    from openclaw_core.losses import head_stats, logits_at
    from openclaw_core.trainer.model import TORCH_DTYPES

    (spec,) = _specs(spec_json)
    shape = spec.padded_vocab_size, spec.hidden
    weight = torch.nn.Parameter(torch.randn(shape, dtype=TORCH_DTYPES[dtype]).mul_(0.02))
    cast(Any, weight).main_grad = torch.ones(shape)

    def run(h: Tensor) -> None:
        n, options = h.shape[0], {"chunk": int(rows), "tied": spec.tied}
        stats = head_stats(h, weight, torch.ones(n), vocab_size=spec.vocab_size, topk=4, **options)
        ids = torch.cat([torch.full((n, 1), 2), stats.topk_ids], 1)
        (logits_at(h, weight, ids, torch.ones(n), **options) - stats.lse[:, None]).sum().backward()

    def hidden(n: int) -> Tensor:
        return torch.randn(n, spec.hidden, dtype=weight.dtype).requires_grad_()

    h = hidden(int(rows))
    run(hidden(8))
    return _added(lambda: run(h))


def peak(spec_json: str, dtype: Dtype, recompute: Any, sequences: str, length: str, response: str) -> dict[str, int]:
    """The most that a forward and backward pass with its head adds to the process, inputs and gradients there before."""
    from openclaw_core.trainer.heads import ResponseHead
    from openclaw_core.trainer.packing import pack

    (spec,) = _specs(spec_json)
    _, model, _ = _trainer(spec, dtype, False, recompute)
    head = ResponseHead(spec, chunk=256, group=None)

    def run(sequences: int, prompt: int, response: int) -> None:
        packed = pack([([1] * prompt, [2] * response)] * sequences)
        rows, temperature = len(packed.rows), torch.ones(len(packed.rows))
        hidden = head.hidden(model, packed)
        stats = head.stats(model, hidden, temperature, topk=4)
        ids = torch.cat([torch.full((rows, 1), 2), stats.topk_ids], 1)
        (head.logits(model, hidden, ids, temperature) - stats.lse[:, None]).sum().backward()

    for buffer in model.buffers:
        buffer.grad_data.fill_(0.0)
    run(1, 8, 8)  # what is made once: thread pools, kernels
    return _added(lambda: run(int(sequences), int(length) - int(response), int(response)))


def _model(spec: ModelSpec, dtype: Dtype, recompute: Any = "none", sequence_parallel: bool = False) -> tuple[Any, Any]:
    from megatron.core.transformer.module import Float16Module

    from openclaw_core.trainer.model import build_gpt

    transformer, gpt = build_gpt(spec, dtype, recompute=recompute, sequence_parallel=sequence_parallel)
    for parameter in gpt.parameters():
        parameter.data.normal_(std=0.02)
    return gpt, Float16Module(transformer, gpt) if dtype == "bf16" else gpt


def _trainer(spec: ModelSpec, dtype: Dtype, distributed: bool, recompute: Any = "none") -> tuple[Any, Any, Any]:
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig

    from openclaw_core.config.training import OptimizerConfig
    from openclaw_core.trainer.optimizer import build_optimizer

    gpt, module = _model(spec, dtype, recompute)
    ddp = DistributedDataParallelConfig(grad_reduce_in_fp32=True, use_distributed_optimizer=distributed)
    model = DistributedDataParallel(gpt.config, ddp, module)
    optimizer = build_optimizer(model, OptimizerConfig(lr=1e-4), bf16=dtype == "bf16", distributed=distributed)
    return gpt, model, optimizer


def _specs(text: str) -> list[ModelSpec]:
    return [ModelSpec(**fields) for fields in json.loads(text)]


def _added(work: Callable[[], None]) -> dict[str, int]:
    """What the process takes more at the peak of ``work`` than before it."""
    Path("/proc/self/clear_refs").write_text("5")
    before = _status("VmRSS")
    work()
    return {"peak": _status("VmHWM") - before}


def _storages(tensors: Iterable[Any]) -> dict[int, int]:
    """Bytes by address."""
    storages = [tensor.untyped_storage() for tensor in tensors if isinstance(tensor, Tensor)]
    return {storage.data_ptr(): storage.nbytes() for storage in storages}


def _named(*parts: dict[int, int]) -> dict[str, dict[int, int]]:
    return dict(zip(("parameters", "gradients", "optimizer"), parts, strict=True))


def _status(name: str) -> int:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name))
    return int(line.split()[1]) * 1024


if __name__ == "__main__":
    main(*sys.argv[1:])
