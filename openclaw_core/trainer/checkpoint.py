"""Checkpoints in megatron's torch_dist format, whole or absent: weights alone, or everything that training continues from.

Every rank calls ``write`` and ``load``. What ``write`` leaves on the ranks' hosts counts as a checkpoint only when
``retention.commit`` has written its manifest. Import this module only after ``Accelerator.prepare()``: it imports megatron.
"""

from __future__ import annotations

import queue
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast

import structlog
import torch
import torch.distributed as dist
from megatron.core import dist_checkpointing, parallel_state
from megatron.core.dist_checkpointing.core import CONFIG_FNAME, CheckpointingConfig, save_config
from megatron.core.dist_checkpointing.mapping import ShardedObject
from megatron.core.dist_checkpointing.state_dict_utils import save_preprocess
from megatron.core.dist_checkpointing.strategies import filesystem_async
from megatron.core.dist_checkpointing.strategies import torch as torch_strategies
from megatron.core.dist_checkpointing.strategies.async_utils import AsyncRequest
from megatron.core.dist_checkpointing.strategies.cached_metadata_filesystem_reader import CachedMetadataFileSystemReader
from megatron.core.dist_checkpointing.strategies.common import COMMON_STATE_FNAME
from megatron.core.dist_checkpointing.strategies.fully_parallel import (
    FullyParallelLoadStrategyWrapper,
    FullyParallelSaveStrategyWrapper,
)
from megatron.core.dist_checkpointing.strategies.torch import TorchDistLoadShardedStrategy, TorchDistSaveShardedStrategy
from megatron.core.models.gpt import GPTModel
from megatron.core.tensor_parallel import get_cuda_rng_tracker
from torch.distributed.checkpoint.api import CheckpointException

from openclaw_core.trainer import distributed_adam
from openclaw_core.trainer.model import TORCH_DTYPES, object_group
from openclaw_core.trainer.parts import CheckpointError, Fetch, Part, ensure, record
from openclaw_core.trainer.retention import META, CheckpointInfo, commit, read_info
from openclaw_core.weights.files import partial_name, publish, remove
from openclaw_core.weights.spec import Dtype, ModelSpec

__all__ = ["CheckpointError", "load", "save", "write"]

T = TypeVar("T")
log = structlog.get_logger(__name__)

_WRITTEN_BY_RANK_0 = (COMMON_STATE_FNAME, CONFIG_FNAME, ".metadata")
"""Read by every rank."""


def write(directory: Path, spec: ModelSpec, gpt: GPTModel, optimizer: Any = None, *, host: str) -> CheckpointInfo:
    """Write this rank's share; every rank calls it together. Returns the manifest with the parts that this rank wrote.

    ``directory`` is the copy on this rank's ``host``: its ranks write there under a temporary name, and it is renamed when
    all ranks of all hosts have brought their files to the disk. It replaces what an uncommitted write left there. Ranks
    that hold the same weights share the writing. With ``optimizer`` (megatron's) it holds its state and the random
    streams of every rank, else weights alone.

    Raises:
        CheckpointError: ``directory`` is a checkpoint already, or a rank cannot write; on every rank.
    """
    unfinished, first = partial_name(directory), _first_on(host)
    with_state = optimizer is not None and _has_state(optimizer)
    try:
        _together(partial(_start, directory, unfinished), first)
        _save(_state(gpt, optimizer if with_state else None, streams=optimizer is not None, loading=False), unfinished)
        parts = _together(partial(_written, unfinished, host))
        _together(partial(publish, unfinished, directory), first)
    except (OSError, _OtherRank) as error:
        if first:
            remove(unfinished)
        raise CheckpointError(f"{directory} cannot be written: {error}; {_free_mb(directory):.0f} MB are free there") from error
    return CheckpointInfo(
        dtype=_dtype(gpt),
        model=asdict(spec),
        training=optimizer is not None,
        optimizer=with_state,
        distributed_optimizer=with_state and distributed_adam.is_distributed(optimizer),
        ranks=_layout(),
        parts=parts or {},
        meta={},
    )


def save(directory: Path, spec: ModelSpec, gpt: GPTModel, optimizer: Any = None, meta: Mapping[str, Any] | None = None) -> None:
    """Write and commit a checkpoint of a process that is the only rank. ``meta`` is JSON.

    Raises:
        CheckpointError: ``directory`` is a checkpoint already, or it cannot be written.
    """
    if dist.get_world_size() != 1:
        raise CheckpointError(f"save() is for one rank, here are {dist.get_world_size()}; write() on each and commit() once")
    commit(directory, [write(directory, spec, gpt, optimizer, host="localhost")], meta)


def load(
    directory: Path,
    spec: ModelSpec,
    gpt: GPTModel,
    optimizer: Any = None,
    *,
    info: CheckpointInfo | None = None,
    fetch: Fetch | None = None,
) -> dict[str, Any]:
    """Load a checkpoint into the model and, where given, the optimiser; returns the ``meta`` that it was committed with.

    Every rank calls it together. ``directory`` is the copy on this rank's host; a part that the rank needs and that is not
    there is pulled by ``fetch`` and kept. ``info`` is the manifest, by default the one in ``directory``. With
    ``optimizer``, a training checkpoint restores its state; from weights alone a fresh optimiser takes its fp32 masters.

    With the ranks of the checkpoint (tensor_parallel and data_parallel), the random streams are restored too, and training
    continues bit for bit. With others, weights and optimiser are split anew, exactly, and the random streams stay as they
    were seeded: there is no way to split those.

    Raises:
        CheckpointError: there is no whole checkpoint, it is of another model, dtype or optimiser, or a part is damaged.
    """
    info = info or read_info(directory)
    _refuse_unfit(directory, info, spec, gpt, optimizer)
    training = optimizer is not None and info.training
    streams = training and info.ranks == _layout()
    pull = partial(ensure, directory, parts=info.parts, fetch=fetch)
    _together(partial(pull, _WRITTEN_BY_RANK_0))
    loaded = _read(directory, _state(gpt, optimizer if info.optimizer else None, streams=streams, loading=True), pull)
    gpt.load_state_dict(loaded["model"])
    if optimizer is not None and info.optimizer:
        with distributed_adam.exact(optimizer):
            optimizer.load_state_dict(loaded["optimizer"])
    elif optimizer is not None:
        optimizer.reload_model_params()
    if streams:
        torch.set_rng_state(loaded["streams"]["cpu"])
        _megatron_streams().set_states(loaded["streams"]["megatron"])
    elif training and dist.get_rank() == 0:
        log.warning("random_streams_not_restored", path=str(directory), written_by=info.ranks, loaded_by=_layout())
    return info.meta


def _start(directory: Path, unfinished: Path) -> None:
    if (directory / META).exists():
        raise CheckpointError(f"{directory} exists; a checkpoint is never overwritten, remove it first")
    remove(unfinished)
    unfinished.mkdir(parents=True)


def _save(state: dict[str, Any], directory: Path) -> None:
    """megatron's ``dist_checkpointing.save``, except that a disk that fails one rank fails all, at once."""
    first = dist.get_rank() == 0
    strategy = _SaveInProcess("torch_dist", 1, thread_count=1)
    sharded, common = save_preprocess(state)
    _together(partial(_save_common, common, directory / COMMON_STATE_FNAME), first)
    try:
        FullyParallelSaveStrategyWrapper(strategy, _data_parallel_group()).save(cast(Any, sharded), directory)
    except CheckpointException as error:
        raise strategy.failure or _OtherRank(_reasons(error)) from error
    _together(partial(save_config, CheckpointingConfig(strategy.backend, strategy.version), str(directory)), first)


def _save_common(common: dict[str, Any], file: Path) -> None:
    try:
        with file.open("wb") as stream:  # given a name, torch would not say why it cannot write
            torch.save(common, stream)
    except RuntimeError as error:
        raise _first_cause(error) from error


def _read(directory: Path, state: dict[str, Any], pull: Callable[[set[str]], Any]) -> dict[str, Any]:
    # Data-parallel ranks each read a share, as far as they can what they wrote, and exchange it.
    strategy = FullyParallelLoadStrategyWrapper(_LoadPulling(pull), _data_parallel_group())
    try:
        return dist_checkpointing.load(state, str(directory), sharded_strategy=strategy)  # pyright: ignore[reportReturnType]
    except CheckpointException as error:
        raise CheckpointError(f"{directory} cannot be loaded: {_reasons(error)}") from error


def _written(directory: Path, host: str) -> dict[str, Part]:
    rank = dist.get_rank()
    files = [*directory.glob(f"__{rank}_*.distcp"), *(directory / name for name in _WRITTEN_BY_RANK_0 if rank == 0)]
    return {file.name: record(file, host) for file in files}


class _SaveInProcess(TorchDistSaveShardedStrategy):
    """torch_dist files, written by this process.

    Megatron's own writer starts a manager process and forks one per file. Here the caller waits for the files anyway,
    and a fork of a process that holds gloo's, Ray's and OpenMP's threads may hang.
    """

    failure: Exception | None = None
    """Why this rank could not write."""

    def async_save(self, sharded_state_dict: Any, checkpoint_dir: Any) -> AsyncRequest:
        filesystem_async._results_queue = queue.SimpleQueue()  # pyright: ignore[reportAttributeAccessIssue]
        return super().async_save(sharded_state_dict, checkpoint_dir)

    def _get_save_and_finalize_callbacks(self, writer: Any, save_state_dict_ret: Any) -> AsyncRequest:
        request = super()._get_save_and_finalize_callbacks(writer, save_state_dict_ret)
        if request.async_fn is None:  # nothing to write on this rank
            return request
        transforms = request.async_fn.args[0]  # pyright: ignore[reportFunctionMemberAccess]
        return request._replace(async_fn=partial(self._write_files, transforms))

    def _write_files(self, transforms: list[Any], _rank: int, buckets: list[Any], results: queue.SimpleQueue[Any]) -> None:
        written: dict[int, Any] = {}
        for index, bucket in enumerate(buckets):
            answer: queue.SimpleQueue[Any] = queue.SimpleQueue()
            running: queue.Queue[int] = queue.Queue()
            running.put(index)
            write: Any = filesystem_async.FileSystemWriterAsync.write_preloaded_data
            write(transforms, index, bucket, answer, running, use_fsync=True)
            _, written[index] = answer.get()
            if isinstance(written[index], Exception):
                # Put among the results, it ends the save on every rank; raised, it would leave the others waiting.
                self.failure = _first_cause(written[index])
                results.put(self.failure)
                return
        results.put(written)


class _LoadPulling(TorchDistLoadShardedStrategy):
    """Reads torch_dist files, having ``pull`` bring those that this rank needs first."""

    def __init__(self, pull: Callable[[set[str]], Any]) -> None:
        super().__init__()
        self._pull = pull

    def load(self, sharded_state_dict: Any, checkpoint_dir: Any) -> Any:
        original = torch_strategies._get_filesystem_reader
        torch_strategies._get_filesystem_reader = self._reader  # no other way in: load() names it
        try:
            return super().load(sharded_state_dict, checkpoint_dir)
        finally:
            torch_strategies._get_filesystem_reader = original

    def _reader(self, checkpoint_dir: Any, cache_metadata: bool = False) -> Any:
        return _PullingReader(checkpoint_dir, self._pull)


class _PullingReader(CachedMetadataFileSystemReader):
    def __init__(self, path: Any, pull: Callable[[set[str]], Any]) -> None:
        super().__init__(path)
        self._pull = pull

    def read_data(self, plan: Any, planner: Any) -> Any:
        self._pull({self.storage_data[item.storage_index].relative_path for item in plan.items})
        return super().read_data(plan, planner)


def _state(gpt: GPTModel, optimizer: Any, *, streams: bool, loading: bool) -> dict[str, Any]:
    """What to save, or the frame to load into."""
    metadata = distributed_adam.METADATA | {"dp_cp_group": _data_parallel_group()}
    state: dict[str, Any] = {"model": gpt.sharded_state_dict(metadata=metadata)}
    if optimizer is not None:
        if loading:
            distributed_adam.make_state(optimizer)
        with distributed_adam.exact(optimizer):
            state["optimizer"] = optimizer.sharded_state_dict(state["model"], is_loading=loading, metadata=metadata)
    if streams:
        own = {"cpu": torch.get_rng_state(), "megatron": _megatron_streams().get_states()}
        rank = parallel_state.get_data_parallel_rank(), parallel_state.get_tensor_model_parallel_rank()
        state["streams"] = ShardedObject("streams", own, (_layout()["data_parallel"], _layout()["tensor_parallel"]), rank)
    return state


def _refuse_unfit(directory: Path, info: CheckpointInfo, spec: ModelSpec, gpt: GPTModel, optimizer: Any) -> None:
    if info.model != asdict(spec):
        other = sorted(name for name, value in asdict(spec).items() if info.model.get(name) != value)
        raise CheckpointError(f"{directory} is of another model: {', '.join(other)} differ")
    if info.dtype != _dtype(gpt):
        raise CheckpointError(f"{directory} holds {info.dtype} parameters, the model has {_dtype(gpt)}")
    if optimizer is not None and info.optimizer and info.distributed_optimizer != distributed_adam.is_distributed(optimizer):
        raise CheckpointError(
            f"{directory} was written with distributed_optimizer={str(info.distributed_optimizer).lower()}, whose state the "
            "other optimiser cannot take; continue with the same setting"
        )


class _OtherRank(CheckpointError):
    """Another rank failed, so this one must give up too."""


def _together(action: Callable[[], T], here: bool = True) -> T | None:
    """Run ``action`` on the ranks where it is due (``here``). If it fails on one, no rank goes on: none waits in vain."""
    result, failure = None, None
    try:
        result = action() if here else None
    except Exception as error:  # noqa: BLE001 - raised below, when the others know
        failure = error
    failed = torch.tensor([float(failure is not None)])
    dist.all_reduce(failed, group=object_group())
    if failure is not None:
        raise failure
    if failed.item():
        raise _OtherRank("another rank failed, see its message")
    return result


def _first_on(host: str) -> bool:
    """True on the first rank of each host."""
    hosts: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(hosts, host, group=object_group())
    return hosts.index(host) == dist.get_rank()


def _first_cause(error: BaseException) -> Any:
    """torch's zip writer answers a full disk with an error of its own, raised while it handles the OSError."""
    while error.__context__ is not None:
        error = error.__context__
    return error


def _reasons(error: CheckpointException) -> str:
    return "; ".join(f"rank {rank}: {cause}" for rank, (cause, _) in sorted(error.failures.items())) or "another rank failed"


def _free_mb(directory: Path) -> float:
    return shutil.disk_usage(next(path for path in directory.parents if path.exists())).free / 1e6


def _has_state(optimizer: Any) -> bool:
    """False before the first step: torch's Adam makes its moments then, and a fresh optimiser is as good."""
    return any(part.optimizer.state for part in distributed_adam.parts(optimizer))


def _layout() -> dict[str, int]:
    return {
        "tensor_parallel": parallel_state.get_tensor_model_parallel_world_size(),
        "data_parallel": parallel_state.get_data_parallel_world_size(),
    }


def _megatron_streams() -> Any:
    return get_cuda_rng_tracker()


def _data_parallel_group() -> Any:
    return parallel_state.get_data_parallel_group(with_context_parallel=True)


def _dtype(gpt: GPTModel) -> Dtype:
    return next(name for name, dtype in TORCH_DTYPES.items() if dtype == next(gpt.parameters()).dtype)
