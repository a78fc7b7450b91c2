"""Checkpoints in megatron's torch_dist format, whole or absent: weights alone, or everything that training continues from.

Import this module only after ``Accelerator.prepare()``: it imports megatron. Every rank calls ``save`` and ``load``.
"""

from __future__ import annotations

import queue
import shutil
from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import dist_checkpointing, parallel_state
from megatron.core.dist_checkpointing.mapping import ShardedObject
from megatron.core.dist_checkpointing.strategies import filesystem_async
from megatron.core.dist_checkpointing.strategies.async_utils import AsyncRequest
from megatron.core.dist_checkpointing.strategies.torch import TorchDistSaveShardedStrategy
from megatron.core.models.gpt import GPTModel
from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer
from megatron.core.tensor_parallel import get_cuda_rng_tracker

from openclaw_core.trainer.model import TORCH_DTYPES
from openclaw_core.trainer.retention import META, CheckpointError, CheckpointInfo, read_info
from openclaw_core.weights.files import partial_name, publish_directory, remove, write_json
from openclaw_core.weights.spec import Dtype, ModelSpec

__all__ = ["CheckpointError", "load", "save"]


def save(directory: Path, spec: ModelSpec, gpt: GPTModel, optimizer: Any = None, meta: Mapping[str, Any] | None = None) -> None:
    """Write a checkpoint under a temporary name and rename it when all of it is on the disk.

    With ``optimizer`` (megatron's) it holds its state and the random streams, else weights alone. ``meta`` is JSON.

    Raises:
        CheckpointError: ``directory`` exists, or it cannot be written.
    """
    if directory.exists():
        raise CheckpointError(f"{directory} exists; a checkpoint is never overwritten, remove it first")
    with_state = optimizer is not None and _has_state(optimizer)
    state = _state(gpt, optimizer if with_state else None, training=optimizer is not None, loading=False)
    info = CheckpointInfo(_dtype(gpt), asdict(spec), optimizer is not None, with_state, dict(meta or {}))
    try:
        _write(directory, state, info)
    except OSError as error:
        remove(partial_name(directory))
        free_mb = shutil.disk_usage(next(path for path in directory.parents if path.exists())).free / 1e6
        raise CheckpointError(f"{directory} cannot be written: {error}; {free_mb:.0f} MB are free there") from error


def load(directory: Path, spec: ModelSpec, gpt: GPTModel, optimizer: Any = None) -> dict[str, Any]:
    """Load a checkpoint into the model and, where given, the optimiser; returns the ``meta`` that it was saved with.

    With ``optimizer``, a training checkpoint restores its state and the random streams, so that training continues bit
    for bit; from weights alone a fresh optimiser takes its fp32 masters. Without, only weights are read.

    Raises:
        CheckpointError: there is no whole checkpoint, or it is of another model or dtype.
    """
    info = read_info(directory)
    if info.model != asdict(spec):
        other = sorted(name for name, value in asdict(spec).items() if info.model.get(name) != value)
        raise CheckpointError(f"{directory} is of another model: {', '.join(other)} differ")
    if info.dtype != _dtype(gpt):
        raise CheckpointError(f"{directory} holds {info.dtype} parameters, the model has {_dtype(gpt)}")
    training = optimizer is not None and info.training
    state = _state(gpt, optimizer if info.optimizer else None, training=training, loading=True)
    loaded: Any = dist_checkpointing.load(state, str(directory))
    gpt.load_state_dict(loaded["model"])
    if optimizer is not None:
        if info.optimizer:
            optimizer.load_state_dict(loaded["optimizer"])
        else:
            optimizer.reload_model_params()
    if training:
        torch.set_rng_state(loaded["rng"]["cpu"])
        _streams().set_states(loaded["rng"]["streams"])
    return info.meta


def _write(directory: Path, state: dict[str, Any], info: CheckpointInfo) -> None:
    first, unfinished = dist.get_rank() == 0, partial_name(directory)
    if first:
        remove(unfinished)
        unfinished.mkdir(parents=True)
    dist.barrier()
    dist_checkpointing.save(state, str(unfinished), sharded_strategy=_SaveInProcess("torch_dist", 1, thread_count=1))
    if first:
        write_json(unfinished / META, asdict(info))
        publish_directory(unfinished, directory)
    dist.barrier()


class _SaveInProcess(TorchDistSaveShardedStrategy):
    """torch_dist files, written by this process.

    Megatron's own writer starts a manager process and forks one per file. Here the caller waits for the files anyway,
    and a fork of a process that holds gloo's, Ray's and OpenMP's threads may hang.
    """

    def async_save(self, sharded_state_dict: Any, checkpoint_dir: Any) -> AsyncRequest:
        filesystem_async._results_queue = queue.SimpleQueue()  # pyright: ignore[reportAttributeAccessIssue]
        return super().async_save(sharded_state_dict, checkpoint_dir)

    def _get_save_and_finalize_callbacks(self, writer: Any, save_state_dict_ret: Any) -> AsyncRequest:
        request = super()._get_save_and_finalize_callbacks(writer, save_state_dict_ret)
        if request.async_fn is None:  # nothing to write on this rank
            return request
        transforms = request.async_fn.args[0]  # pyright: ignore[reportFunctionMemberAccess]
        return request._replace(async_fn=partial(_write_files, transforms))


def _write_files(transforms: list[Any], _rank: int, buckets: list[Any], results: queue.SimpleQueue[Any]) -> None:
    written: dict[int, Any] = {}
    for index, bucket in enumerate(buckets):
        answer: queue.SimpleQueue[Any] = queue.SimpleQueue()
        running: queue.Queue[int] = queue.Queue()
        running.put(index)
        write: Any = filesystem_async.FileSystemWriterAsync.write_preloaded_data
        write(transforms, index, bucket, answer, running, use_fsync=True)
        _, result = answer.get()
        if isinstance(result, Exception):
            raise _first_cause(result)
        written[index] = result
    results.put(written)


def _first_cause(error: BaseException) -> BaseException:
    """torch's zip writer answers a full disk with an error of its own, raised while it handles the OSError."""
    while error.__context__ is not None:
        error = error.__context__
    return error


def _state(gpt: GPTModel, optimizer: Any, *, training: bool, loading: bool) -> dict[str, Any]:
    """What to save, or the frame to load into."""
    group = parallel_state.get_data_parallel_group(with_context_parallel=True)
    state: dict[str, Any] = {"model": gpt.sharded_state_dict(metadata={"dp_cp_group": group})}
    if optimizer is not None:
        _refuse_distributed(optimizer)
        state["optimizer"] = optimizer.sharded_state_dict(state["model"], is_loading=loading)
    if training:
        streams = {"cpu": torch.get_rng_state(), "streams": _streams().get_states()}
        size, rank = parallel_state.get_tensor_model_parallel_world_size(), parallel_state.get_tensor_model_parallel_rank()
        state["rng"] = ShardedObject("rng", streams, (size,), (rank,), replica_id=parallel_state.get_data_parallel_rank())
    return state


def _streams() -> Any:
    """Megatron's random streams of this rank."""
    return get_cuda_rng_tracker()


def _has_state(optimizer: Any) -> bool:
    """False before the first step: torch's Adam makes its moments then, and a fresh optimiser is as good."""
    return any(part.optimizer.state for part in getattr(optimizer, "chained_optimizers", [optimizer]))


def _refuse_distributed(optimizer: Any) -> None:
    """Megatron 0.16's distributed optimiser over torch's AdamW continues with wrong moments after a load, without an error."""
    parts = getattr(optimizer, "chained_optimizers", [optimizer])
    if any(isinstance(part, DistributedOptimizer) for part in parts):
        raise CheckpointError(
            "checkpoints of megatron's DistributedOptimizer are not supported; set use_distributed_optimizer=False"
        )


def _dtype(gpt: GPTModel) -> Dtype:
    return next(name for name, dtype in TORCH_DTYPES.items() if dtype == next(gpt.parameters()).dtype)
