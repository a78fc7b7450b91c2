"""Processes of test_checkpoint*.py: a tiny model that is trained, saved and loaded, on one or several ranks.

Usage: python -m tests.integration.checkpoint_child SCENARIO HF_DIR DTYPE ROOT RANK WORLD_SIZE PORT. SCENARIO is the name of
a function below; ROOT is where checkpoints go. Prints its answer as JSON.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import resource
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from tests.children import tcp_store

Answer = dict[str, Any]


def main(scenario: str, hf: str, dtype: str, root: str, rank: str, world_size: str, port: str) -> None:
    join(int(rank), int(world_size), int(port))
    answer = globals()[scenario](Path(hf), dtype, Path(root))
    sys.stdout.write("\n" + json.dumps(answer))


def join(rank: int, world_size: int, port: int, tensor_parallel: int = 1) -> None:
    """Make this process a rank on gloo."""
    from openclaw_core.trainer import accelerator

    accelerator.cpu().prepare()
    from openclaw_core.trainer.model import init_parallel

    torch.set_num_threads(1)
    init_parallel(
        accelerator.cpu(),
        tensor_parallel=tensor_parallel,
        rank=rank,
        world_size=world_size,
        store=tcp_store(world_size, port) if world_size > 1 else None,
        timeout_s=120,
    )
    seed()


def regroup(tensor_parallel: int) -> None:
    """Split the same ranks another way."""
    from megatron.core import parallel_state

    parallel_state.destroy_model_parallel()
    parallel_state.initialize_model_parallel(tensor_model_parallel_size=tensor_parallel)
    seed()


def seed(value: int = 3) -> None:
    """Each data-parallel rank draws other ids; tensor-parallel ranks draw the same."""
    from megatron.core import parallel_state

    from openclaw_core.trainer import accelerator

    accelerator.cpu().seed(value)
    torch.manual_seed(100 * value + parallel_state.get_data_parallel_rank())


class Trainee:
    """A model in DDP with megatron's Adam, trained on random ids drawn from the global random stream."""

    def __init__(self, hf: Path, dtype: str, *, distributed: bool = False, fresh: bool = False) -> None:
        from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
        from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
        from megatron.core.transformer.module import Float16Module

        from openclaw_core.trainer.model import TORCH_DTYPES, ModelSpec, build_gpt
        from openclaw_core.weights.hf_files import load_hf

        self.spec, bf16 = ModelSpec.from_hf(hf), dtype == "bf16"
        config, self.gpt = build_gpt(self.spec, dtype)
        if fresh:
            # Whatever the checkpoint does not restore must show.
            for parameter in self.gpt.parameters():
                parameter.data.fill_(float("nan"))
            seed(99)
        else:
            load_hf(self.gpt, hf, self.spec)
            seed()
        module = Float16Module(config, self.gpt) if bf16 else self.gpt
        ddp = DistributedDataParallelConfig(grad_reduce_in_fp32=True, use_distributed_optimizer=distributed)
        self.model = DistributedDataParallel(config, ddp, module)
        settings = OptimizerConfig(
            optimizer="adam",
            lr=1e-3,
            weight_decay=0.1,
            clip_grad=0.0,
            bf16=bf16,
            params_dtype=TORCH_DTYPES[dtype],
            use_distributed_optimizer=distributed,
        )
        self.optimizer: Any = get_megatron_optimizer(settings, [self.model])

    def step(self, ids: torch.Tensor | None = None) -> float:
        from megatron.core.distributed import finalize_model_grads
        from megatron.core.tensor_parallel import gather_from_tensor_model_parallel_region

        from openclaw_core.trainer.model import hidden_states, output_weight

        ids = torch.randint(3, self.spec.vocab_size, (2, 24)) if ids is None else ids
        self.model.zero_grad_buffer()
        self.optimizer.zero_grad()
        logits = torch.nn.functional.linear(hidden_states(self.model, ids), output_weight(self.gpt)).float()
        logits = gather_from_tensor_model_parallel_region(logits)[..., : self.spec.vocab_size]
        logprobs = logits.transpose(0, 1)[:, :-1].log_softmax(-1).gather(-1, ids[:, 1:, None])
        loss = -logprobs.sum() / 100
        loss.backward()
        finalize_model_grads([self.model])
        self.optimizer.step()
        return loss.item()

    def global_step(self, number: int) -> float:
        """A step on the same four sequences, however many ranks share them."""
        from megatron.core import parallel_state

        ids = torch.randint(3, self.spec.vocab_size, (4, 24), generator=torch.Generator().manual_seed(number))
        return self.step(ids.chunk(parallel_state.get_data_parallel_world_size())[parallel_state.get_data_parallel_rank()])

    def save(self, directory: Path, meta: Answer | None = None) -> None:
        """Every rank writes to one host's directory, rank 0 commits."""
        from openclaw_core.trainer import retention

        written: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(written, self.write(directory))
        if dist.get_rank() == 0:
            retention.commit(directory, written, meta)
        dist.barrier()

    def write(self, directory: Path) -> Any:
        from openclaw_core.trainer import checkpoint

        return checkpoint.write(directory, self.spec, self.gpt, self.optimizer, host="one")

    def load(self, directory: Path, *, optimizer: bool = True) -> Answer:
        from openclaw_core.trainer import checkpoint

        meta = checkpoint.load(directory, self.spec, self.gpt, self.optimizer if optimizer else None)
        if not optimizer:
            self.optimizer.reload_model_params()
        return meta

    def digest(self) -> str:
        """Over this rank's parameters, fp32 masters, moments, step counts and random streams."""
        from megatron.core.tensor_parallel import get_cuda_rng_tracker

        tracker: Any = get_cuda_rng_tracker()
        tensors = [*self.gpt.parameters(), torch.get_rng_state(), *tracker.get_states().values()]
        inner = self.optimizer.chained_optimizers[0].optimizer
        for group in inner.param_groups:
            for main in group["params"]:
                tensors += [main, *(inner.state[main][name] for name in ("exp_avg", "exp_avg_sq", "step"))]
        digest = hashlib.sha256()
        for tensor in tensors:
            digest.update(tensor.detach().float().numpy().tobytes())
        return digest.hexdigest()

    def go_on(self, steps: int = 2) -> Answer:
        """Train; what was seen and what came of it."""
        return {"losses": [self.step() for _ in range(steps)], "state": self.digest()}


def straight(hf: Path, dtype: str, root: Path) -> Answer:
    """Checkpoints before the first and after the second step; then two more steps."""
    from openclaw_core.trainer.retention import step_directory

    trainee = Trainee(hf, dtype)
    trainee.save(step_directory(root, 0), {"step": 0})
    early = [trainee.step() for _ in range(2)]
    trainee.save(step_directory(root, 2), {"step": 2})
    late = trainee.go_on()
    return {"early": early, "late": late}


def resume(hf: Path, dtype: str, root: Path) -> Answer:
    """In another process: from step 2, from step 2 by its weights alone, from step 0; last, a write that fails."""
    from openclaw_core.trainer.retention import step_directory

    answer: Answer = {}
    for name, step, optimizer in (("exact", 2, True), ("weights", 2, False), ("from 0", 0, True)):
        trainee = Trainee(hf, dtype, fresh=True)
        meta = trainee.load(step_directory(root, step), optimizer=optimizer)
        answer[name] = {"meta": meta} | trainee.go_on(4 - step)
    answer["error"] = failure_of(lambda: Trainee(hf, dtype).save(step_directory(root, 9)), limit=100_000)
    return answer


def killed(hf: Path, dtype: str, root: Path) -> Answer:
    """kill -9 when the tensors of step 4 are half written."""
    from megatron.core.dist_checkpointing.strategies import filesystem_async

    from openclaw_core.trainer.retention import step_directory

    trainee = Trainee(hf, dtype)
    trainee.step()
    trainee.save(step_directory(root, 2))
    original, items = filesystem_async._write_item, iter(range(1000))

    @functools.wraps(original)  # its caller looks at its parameters
    def write_item(*arguments: Any, **options: Any) -> Any:
        if next(items) == 20:
            os.kill(os.getpid(), signal.SIGKILL)
        return original(*arguments, **options)

    filesystem_async._write_item = write_item
    trainee.save(step_directory(root, 4))
    return {}


def exact_ranks(hf: Path, dtype: str, root: Path) -> Answer:
    """Megatron's DistributedOptimizer, resumed on the same ranks; and what happens without one of the cures."""
    from openclaw_core.trainer import distributed_adam

    Trainee(hf, dtype, distributed=True).save(root / "step_000000")
    regroup(dist.get_world_size() // 2)
    trainee = Trainee(hf, dtype, distributed=True, fresh=True)
    trainee.load(root / "step_000000")
    seed()
    early = [trainee.step() for _ in range(2)]
    trainee.save(root / "step_000002")
    answer: Answer = {"early": early, "straight": trainee.go_on()}
    for name in ("exact", "one step count for all"):
        if name != "exact":
            distributed_adam._separate_steps = lambda _optimizer: None
        trainee = Trainee(hf, dtype, distributed=True, fresh=True)
        trainee.load(root / "step_000002")
        answer[name] = trainee.go_on()
    return answer


def reshard(hf: Path, dtype: str, root: Path) -> Answer:
    """Two ranks as DP2, then TP2, then DP2 again, each from the checkpoint of the one before, with both optimisers."""
    answer: Answer = {"streams_left_alone": True}
    for distributed in (False, True):
        regroup(1)
        kind = root / ("distributed" if distributed else "replicated")
        trainee = Trainee(hf, dtype, distributed=distributed)
        for number in range(2):
            trainee.global_step(number)
        trainee.save(kind / "dp2")
        plain, ends = [tensors(kind / "dp2")], [end(trainee, kind / "dp2_end")]
        for tensor_parallel, source, name in ((2, "dp2", "tp2"), (1, "tp2", "back")):
            regroup(tensor_parallel)
            trainee = Trainee(hf, dtype, distributed=distributed, fresh=True)
            before = torch.get_rng_state()
            trainee.load(kind / source)
            answer["streams_left_alone"] &= bool(torch.equal(before, torch.get_rng_state()))
            trainee.save(kind / name)
            plain.append(tensors(kind / name))
            ends.append(end(trainee, kind / f"{name}_end"))
        answer[kind.name] = {
            "names": len(plain[0]),
            "same": [all(torch.equal(plain[0][name], other[name]) for name in plain[0]) for other in plain[1:]],
            "same_names": [plain[0].keys() == other.keys() for other in plain[1:]],
            "moved": difference(plain[0], ends[0]),
            "apart": [difference(ends[0], other) for other in ends[1:]],
        }
    regroup(1)
    answer["wrong optimiser"] = failure_of(lambda: Trainee(hf, dtype).load(root / "distributed" / "dp2"))
    return answer | one_rank_fails(hf, dtype, root / "full")


def one_rank_fails(hf: Path, dtype: str, root: Path) -> Answer:
    """Rank 1's disk is full: no rank waits for it, and nothing is left. The next writes work until one is committed."""
    trainee = Trainee(hf, dtype)
    trainee.step()
    error = failure_of(lambda: trainee.save(root / "step_000001"), limit=20_000 if dist.get_rank() == 1 else None)
    dist.barrier()
    left = sorted(path.name for path in root.iterdir())
    dist.barrier()
    trainee.write(root / "step_000001")
    trainee.save(root / "step_000001")
    again = failure_of(lambda: trainee.save(root / "step_000001"))
    return {"full": error, "left": left, "again": again, "then": sorted(path.name for path in root.iterdir())}


def end(trainee: Trainee, directory: Path) -> dict[str, torch.Tensor]:
    """All state after two more steps."""
    for number in (2, 3):
        trainee.global_step(number)
    trainee.save(directory)
    return tensors(directory)


def tensors(directory: Path) -> dict[str, torch.Tensor]:
    """Everything in a checkpoint, whole: parameters and moments by name."""
    from megatron.core import dist_checkpointing

    whole = dist_checkpointing.load_plain_tensors(str(directory))
    return {name: value for name, value in whole.items() if isinstance(value, torch.Tensor)}


def difference(these: dict[str, torch.Tensor], those: dict[str, torch.Tensor]) -> float:
    """Norm of the difference over the norm, the largest over all tensors."""
    return max(((these[name] - those[name]).norm() / these[name].norm()).item() for name in these)


def failure_of(action: Callable[[], Any], limit: int | None = None) -> str | None:
    """The CheckpointError's message, where files may not grow beyond ``limit`` bytes."""
    from openclaw_core.trainer.checkpoint import CheckpointError

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    if limit is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        action()
    except CheckpointError as error:
        return str(error)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    return None


if __name__ == "__main__":
    main(*sys.argv[1:])
