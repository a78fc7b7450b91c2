"""One trainer rank: Megatron model, optimiser, the hybrid step, checkpoints and the weights that are published.

A Ray actor's class. Its process applies the CPU shim (which changes torch process-wide), so nothing else lives in it,
and what imports megatron is imported here only after the process is prepared.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from pathlib import Path
from typing import Any, cast

import ray
import structlog
import torch

from openclaw_core.config.schema import RunConfig
from openclaw_core.log import configure_logging
from openclaw_core.losses import Sums, add_sums, finish_metrics
from openclaw_core.trainer import accelerator as accelerators
from openclaw_core.trainer import retention
from openclaw_core.trainer.group import TrainerError, TrainResult
from openclaw_core.trainer.packing import micro_batches, padding_share
from openclaw_core.types import DropReason, Sample

log = structlog.get_logger(__name__)


class TrainerWorker:
    """See the module's docstring. Calls come one at a time, and on every rank alike."""

    def __init__(self, config_json: str, hf_dir: str, base_checkpoint: str, rank: int, world_size: int) -> None:
        configure_logging()
        self.config = RunConfig.model_validate_json(config_json)
        self.hf_dir, self.base_checkpoint = Path(hf_dir), Path(base_checkpoint)
        if world_size != 1:
            raise TrainerError(f"train.tensor_parallel x train.data_parallel = {world_size}; only one rank is supported so far")
        torch.set_num_threads(self.config.train.threads)
        accelerator = accelerators.detect()
        accelerator.prepare()
        from openclaw_core.trainer.model import init_parallel

        init_parallel(
            accelerator, rank=rank, world_size=world_size, seed=self.config.train.seed, timeout_s=self.config.train.deadline_s
        )
        self._build()
        self.skipped_steps = self.consecutive_skips = 0
        log.info("trainer_ready", model=str(self.base_checkpoint), dtype=self.config.model.dtype)

    def load(self, checkpoints: str) -> tuple[int, int]:
        """The newest whole checkpoint, or the start model where there is none; returns (step, weight version)."""
        from openclaw_core.trainer import checkpoint

        newest = retention.latest(Path(checkpoints))
        if newest is None:
            return 0, 0
        meta = checkpoint.load(newest, self.spec, self.gpt, self.optimizer)
        log.info("checkpoint_loaded", path=str(newest), **meta)
        return int(meta["step"]), int(meta["version"])

    def train(self, step: int, samples: list[Sample], probe: dict[str, tuple[float, ...]]) -> TrainResult:
        """Forward and backward over the batch's micro-batches, then one optimiser step or, by the guard, none."""
        from megatron.core.distributed import finalize_model_grads

        from openclaw_core.trainer.optimizer import agreed, finite, learning_rate, set_learning_rate

        batches = micro_batches(samples, self.config.train.micro_batch_size)
        self.model.zero_grad_buffer()
        self.optimizer.zero_grad()
        sums, masked, bad_samples = self._backward(step, batches, len(samples), probe)
        finalize_model_grads([self.model])
        rate = learning_rate(self.config.optimizer, step, self.config.train.steps)
        set_learning_rate(self.optimizer, rate)
        skipped = not agreed(not bad_samples and finite(self._gradients()))
        grad_norm = None if skipped else float(self.optimizer.step()[1])
        self.skipped_steps += skipped
        self.consecutive_skips = self.consecutive_skips + 1 if skipped else 0
        if skipped:
            log.warning("step_skipped", step=step, samples=bad_samples, reason="the gradient is not finite")
        metrics = {f"train/{name}": value for name, value in finish_metrics(sums, single_step=True).items()} if sums else {}
        metrics |= {
            "train/loss": float(sums["loss"]) if sums else None,
            "train/grad_norm": grad_norm,
            "train/lr": rate,
            "train/engine_parity_abs_diff": float(sums["parity"] / sums["parity_tokens"])
            if sums and sums["parity_tokens"]
            else None,
            "train/padding_share": padding_share(batches),
            "train/skipped_steps": self.skipped_steps,
            "rollout/dropped": dict(Counter(reason.value for reason in masked.values())),
        }
        return TrainResult(metrics, skipped, self.consecutive_skips, bad_samples)

    def weights(self) -> tuple[Any, str]:
        """The parameters under HF names, in Ray's object store, and their checksum."""
        from openclaw_core.engines.arrays import as_arrays
        from openclaw_core.weights.checksum import checksum

        named = self._hf_weights()
        return [ray.put(as_arrays(named))], checksum(named.items())

    def save(self, checkpoints: str, step: int, version: int) -> str:
        """Write a checkpoint whole or not at all, and forget those beyond ``train.keep_last``; returns its path."""
        from openclaw_core.trainer import checkpoint

        directory = retention.step_directory(Path(checkpoints), step)
        if retention.latest(Path(checkpoints)) != directory:
            checkpoint.save(directory, self.spec, self.gpt, self.optimizer, {"step": step, "version": version})
            retention.prune(Path(checkpoints), self.config.train.keep_last)
            log.info("checkpoint_saved", path=str(directory), step=step, version=version)
        return str(directory)

    def export(self, directory: str) -> str:
        """The current weights as an HF model; returns their checksum."""
        from openclaw_core.weights.export import export_hf

        return export_hf(self._hf_weights().items(), self.hf_dir, Path(directory)).checksum

    def _build(self) -> None:
        from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig

        from openclaw_core.trainer import checkpoint
        from openclaw_core.trainer.model import ModelSpec
        from openclaw_core.trainer.optimizer import build_optimizer
        from openclaw_core.trainer.step import ColocatedStep

        self.spec = ModelSpec.from_hf(self.hf_dir)
        transformer, self.gpt, module = self._model()
        checkpoint.load(self.base_checkpoint, self.spec, self.gpt)
        ddp = DistributedDataParallelConfig(grad_reduce_in_fp32=True, use_distributed_optimizer=False)
        self.model = DistributedDataParallel(transformer, ddp, module)
        self.optimizer = build_optimizer(self.model, self.config.optimizer, bf16=self.config.model.dtype == "bf16")
        reference = None
        if self.config.loss.kl_coef > 0:
            _, gpt, reference = self._model()
            checkpoint.load(self.base_checkpoint, self.spec, gpt)
            reference.requires_grad_(False)
        self.step = ColocatedStep(self.model, reference, self.spec, self.config.loss)

    def _model(self) -> tuple[Any, Any, torch.nn.Module]:
        """(TransformerConfig, GPTModel, the module to run): Megatron's own bf16 mode, or plain fp32."""
        from megatron.core.transformer.module import Float16Module

        from openclaw_core.trainer.model import build_gpt

        transformer, gpt = build_gpt(self.spec, self.config.model.dtype)
        return transformer, gpt, Float16Module(transformer, gpt) if self.config.model.dtype == "bf16" else gpt

    def _backward(
        self, step: int, batches: list[Any], global_samples: int, probe: dict[str, tuple[float, ...]]
    ) -> tuple[Sums, dict[str, DropReason], tuple[str, ...]]:
        """Accumulate the batch's gradient; stops at the first micro-batch that makes it non-finite and names its samples."""
        from openclaw_core.trainer.optimizer import finite
        from openclaw_core.trainer.step import NonFiniteForward

        generator = torch.Generator().manual_seed(self.config.train.seed * 1_000_003 + step)
        sums: Sums = {}
        masked: dict[str, DropReason] = {}
        for i, batch in enumerate(batches):
            last = i == len(batches) - 1
            with contextlib.nullcontext() if last else self.model.no_sync():
                try:
                    result = self.step(batch, global_samples, probe, generator)
                    result.loss.backward()
                except NonFiniteForward as error:
                    log.warning("non_finite_forward", step=step, reason=str(error))
                    return sums, masked, tuple(s.sample_id for s in batch.samples)
            sums = add_sums([sums, result.sums, {"loss": result.loss.detach()}])
            masked |= result.masked
            if not finite(self._gradients()):
                return sums, masked, tuple(s.sample_id for s in batch.samples)
        return sums, masked, ()

    def _gradients(self) -> list[torch.Tensor]:
        return [buffer.grad_data for buffer in cast(Any, self.model).buffers]

    def _hf_weights(self) -> dict[str, torch.Tensor]:
        from openclaw_core.weights.names import to_hf

        return {name: tensor.detach().clone() for name, tensor in to_hf([dict(self.gpt.named_parameters())], self.spec)}
