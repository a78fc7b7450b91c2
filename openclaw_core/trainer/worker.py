"""One trainer rank: Megatron model, optimiser, the hybrid step, checkpoints and the weights that are published.

A Ray actor's class. What imports megatron is imported inside the methods: the process is prepared for it by ``join``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import ray
import structlog
import torch

from openclaw_core.losses import Sums, add_sums, mean_of_steps
from openclaw_core.scorer.score import Score
from openclaw_core.trainer.packing import MicroBatch, micro_batches
from openclaw_core.trainer.publisher import Publication, Publisher
from openclaw_core.trainer.rank import Rank
from openclaw_core.trainer.retention import CheckpointInfo
from openclaw_core.trainer.sender import Sender
from openclaw_core.trainer.token_table import SampleTokens
from openclaw_core.types import DropReason, Sample
from openclaw_core.weights.errors import PublishError

log = structlog.get_logger(__name__)

Probe = Mapping[str, tuple[float, ...]]
Scores = Mapping[str, Score]


@dataclass
class RankResult:
    """What one rank saw of a rollout's optimiser steps; the ranks' results add up to those of the batch."""

    sums: dict[str, float] = field(default_factory=dict)
    """Of this rank's share of the batch; ranks that share one copy of the model have the same."""
    masked: dict[str, DropReason] = field(default_factory=dict)
    bad_samples: list[str] = field(default_factory=list)
    """Samples of the micro-batches after which this rank's gradient, or a log-prob, was not finite."""
    skipped: list[bool] = field(default_factory=list)
    """By optimiser step; the same on every rank."""
    grad_norms: list[float] = field(default_factory=list)
    """Before clipping, of the steps that were made."""
    learning_rate: float = 0.0
    tokens: int = 0
    positions: int = 0
    """Of this rank's micro-batches, padding included."""
    table: list[SampleTokens] = field(default_factory=list)
    """What the loss saw of every token, by the first of the ranks that share a copy of the model; with train.token_tables."""


class TrainerWorker(Rank):
    """See the module's docstring."""

    def build(self, hf_dir: str, base_checkpoint: str) -> None:
        """Make model, optimiser and step, with the start model's weights."""
        from megatron.core import parallel_state
        from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig

        from openclaw_core.scorer.scoring import Scorer
        from openclaw_core.trainer.builder import build_model, response_head
        from openclaw_core.trainer.optimizer import build_optimizer
        from openclaw_core.trainer.step import HybridStep

        self.at("build the model")
        config, train = self.config, self.config.train
        self.hf_dir, self.base_checkpoint = Path(hf_dir), Path(base_checkpoint)
        self.data_rank = parallel_state.get_data_parallel_rank()
        transformer, self.gpt, module = build_model(self.spec, config, self.accelerator, self.base_checkpoint)
        ddp = DistributedDataParallelConfig(
            grad_reduce_in_fp32=True, use_distributed_optimizer=train.distributed_optimizer, overlap_grad_reduce=False
        )
        self.model = DistributedDataParallel(transformer, ddp, module)
        bf16 = config.model.dtype == "bf16"
        self.optimizer = build_optimizer(self.model, config.optimizer, bf16=bf16, distributed=train.distributed_optimizer)
        start = None
        if config.scorer.placement == "colocated" and Scorer.needs_start(config):
            _, _, start = build_model(self.spec, config, self.accelerator, self.base_checkpoint)
            start.requires_grad_(False)
        # Under sequence parallelism every tensor-parallel rank holds an equal part of the positions.
        self.multiple = train.tensor_parallel if train.sequence_parallel else 1
        head = response_head(self.spec, config)
        scorer = Scorer(self.model, start, head, config, device=self.accelerator.device, multiple=self.multiple)
        record_tokens = train.token_tables > 0 and parallel_state.get_tensor_model_parallel_rank() == 0
        self.step = HybridStep(self.model, scorer, head, config.loss, record_tokens=record_tokens)
        self.publisher = self._publisher() if self.rank == 0 else None
        self.look_at_weights()
        self.at("ready")
        log.info("trainer_ready", rank=self.rank, model=str(self.base_checkpoint), dtype=config.model.dtype)

    def train(
        self, step: int, samples: list[Sample], probe: Probe, scores: Scores | None, w_opd: float | None = None
    ) -> RankResult:
        """The optimiser steps of one rollout on this rank's share of the batch, or, by the guard, none.

        Every rank gets the whole batch and takes its share by itself; ``scores`` are those of a separate scorer.
        ``w_opd``: in place of loss.w_opd.
        """
        self.step.weigh_opd(self.config.loss.w_opd if w_opd is None else w_opd)
        count = self.config.train.steps_per_rollout
        shares = [samples[i::count] for i in range(count)]
        batches = [self.micro_batches(share) for share in shares]
        result = RankResult()
        before: list[list[Any]] = [[None] * len(own) for own in batches]
        if count > 1:  # the general form: the old policy before any step
            self.at(f"step {step}: old policy")
            before = [[self.step.evaluate(batch, scores) for batch in own] for own in batches]
        parts: list[Mapping[str, torch.Tensor]] = []
        for share, own, old in zip(shares, batches, before, strict=True):
            bad_before = len(result.bad_samples)
            parts += self.accumulate(step, own, len(share), probe, scores, result, old)
            self._update(step, result, bad=result.bad_samples[bad_before:])
        self.look_at_weights()
        result.sums = {name: float(value) for name, value in mean_of_steps(add_sums(parts), count).items()}
        result.tokens = sum(batch.packed.tokens for own in batches for batch in own)
        result.positions = sum(batch.packed.ids.numel() for own in batches for batch in own)
        self.at("ready")
        return result

    def micro_batches(self, samples: Sequence[Sample]) -> list[MicroBatch]:
        """This rank's micro-batches of some samples."""
        train = self.config.train
        plan = micro_batches(samples, train.max_tokens_per_rank, train.data_parallel)[self.data_rank]
        return [MicroBatch.of(group, self.multiple).to(self.accelerator.device) for group in plan if group]

    def accumulate(
        self,
        step: int,
        batches: Sequence[MicroBatch],
        global_samples: int,
        probe: Probe,
        scores: Scores | None,
        result: RankResult,
        before: Sequence[Any],
    ) -> list[Sums]:
        """The gradient of this rank's micro-batches, reduced over the ranks; returns the micro-batches' metric sums.

        A micro-batch that makes the gradient non-finite is named in ``result``. The rest is computed all the same: ranks
        that share the model must go through the same collectives.
        """
        from megatron.core.distributed import finalize_model_grads

        from openclaw_core.trainer.optimizer import finite
        from openclaw_core.trainer.step import NonFiniteForward

        self.model.zero_grad_buffer()
        self.optimizer.zero_grad()
        sums: list[Sums] = []
        was_finite = True
        for i, (batch, old) in enumerate(zip(batches, before, strict=True)):
            self.at(f"step {step}: micro-batch {i + 1} of {len(batches)}")
            try:
                outcome = self.step(batch, global_samples, probe, scores=scores, before=old)
            except NonFiniteForward as error:
                log.warning("non_finite_forward", step=step, rank=self.rank, reason=str(error))
                result.bad_samples += [s.sample_id for s in batch.samples]
                continue
            outcome.loss.backward()
            sums.append({**outcome.sums, "loss": outcome.loss.detach()})
            result.masked |= outcome.masked
            result.table += outcome.tokens
            if was_finite and not finite(self._gradients()):
                was_finite = False
                result.bad_samples += [s.sample_id for s in batch.samples]
        self.at(f"step {step}: reduce gradients")
        finalize_model_grads([self.model])
        return sums

    def load(self, directory: str, info: CheckpointInfo, stores: Mapping[str, Any]) -> None:
        """Continue from a checkpoint; parts that this host does not hold come from ``stores``, by host."""
        from openclaw_core.trainer import checkpoint
        from openclaw_core.trainer.parts import fetch_from

        self.at(f"load {directory}")
        fetch = fetch_from(stores, self.config.train.collective_s)
        checkpoint.load(Path(directory), self.spec, self.gpt, self.optimizer, info=info, fetch=fetch)
        self.look_at_weights()
        self.at("ready")

    def save(self, directory: str) -> CheckpointInfo:
        """Write this rank's share of a checkpoint, which counts when it is committed."""
        from openclaw_core.trainer import checkpoint
        from openclaw_core.trainer.gather import sync_parameters

        self.at(f"save {directory}")
        sync_parameters(self.model)
        info = checkpoint.write(Path(directory), self.spec, self.gpt, self.optimizer, host=self.host())
        self.at("ready")
        return info

    def weights(self) -> Publication | None:
        """The parameters under HF names, for whoever receives them until the next call; None on all ranks but the first.

        Raises FloatingPointError where a weight of this rank is not finite: such weights are never published.
        """
        from openclaw_core.trainer.gather import hf_weights, sync_parameters

        self.at("gather the weights")
        sync_parameters(self.model)
        publication = None
        if self.data_rank == 0:
            if self.publisher is not None:
                publication = self.publisher.publish(hf_weights(self.gpt, self.spec, grouped=True))
            else:
                assert not list(hf_weights(self.gpt, self.spec))  # takes part in the gathering
        self.at("ready")
        if self.broken:  # only now: other ranks needed this one
            raise FloatingPointError(
                f"{len(self.broken)} parameters of rank {self.rank} are not finite, so the weights are not published; "
                f"among them {self.broken[0]}"
            )
        return publication

    def look_at_weights(self) -> None:
        """Note which parameters are not finite: whenever they have changed, and not while users wait for a publish.

        Where ranks share the optimiser's work each sees its own share of the new parameters, and so all are seen.
        """
        from openclaw_core.trainer.optimizer import not_finite

        self.broken = not_finite(self.gpt.named_parameters())

    @ray.method(concurrency_group="publish")
    def open_group(self, name: str, world_size: int, backend: str) -> tuple[str, int]:
        """First rank: see ``PublishedWeights.open_group``; so with the next ones."""
        return self._published().sender.open(name, world_size, backend)

    @ray.method(concurrency_group="publish")
    def group_joined(self, name: str) -> None:
        """Wait until all members have joined. Raises PublishError."""
        self._published().sender.joined(name)

    @ray.method(concurrency_group="publish")
    def send_bucket(self, name: str, publication: int, bucket: int) -> None:
        """Broadcast a bucket. Raises PublishError."""
        self._published().send(name, publication, bucket)

    @ray.method(concurrency_group="publish")
    def close_group(self, name: str) -> None:
        """Forget a group."""
        self._published().sender.close(name)

    @ray.method(concurrency_group="publish")
    def put_weights(self, publication: int) -> list[Any]:
        """A publication in Ray's object store: one reference, in a list. Raises PublishError."""
        from openclaw_core.weights.arrays import as_arrays

        with self._published().sending(publication) as tensors:
            return [ray.put(as_arrays(tensors))]

    def export(self, directory: str) -> str | None:
        """The current weights as an HF model; returns their checksum on the first rank."""
        from openclaw_core.trainer.gather import hf_weights, sync_parameters
        from openclaw_core.weights.export import export_hf

        self.at("export")
        sync_parameters(self.model)
        if self.data_rank != 0:
            return None
        # All of it before anything is written: an error of the disk must not leave other ranks in a collective.
        named = {name: tensor.cpu() for name, tensor in hf_weights(self.gpt, self.spec)}
        return export_hf(named.items(), self.hf_dir, Path(directory)).checksum if self.rank == 0 else None

    def _update(self, step: int, result: RankResult, bad: list[str]) -> None:
        """One optimiser step, or none on any rank where a gradient is not finite on one; ``bad``: samples found on this one."""
        from openclaw_core.trainer.model import object_group
        from openclaw_core.trainer.optimizer import agreed, finite, learning_rate, set_learning_rate

        result.learning_rate = learning_rate(self.config.optimizer, step, self.config.train.steps)
        set_learning_rate(self.optimizer, result.learning_rate)
        good = not bad and finite(self._gradients())
        skipped = not agreed(good, object_group())
        result.skipped.append(skipped)
        if skipped:
            log.warning("update_skipped", step=step, rank=self.rank, samples=bad)
            return
        self.at(f"step {step}: optimiser")
        result.grad_norms.append(float(self.optimizer.step()[1]))

    def _publisher(self) -> Publisher:
        from openclaw_core.trainer.model import TORCH_DTYPES
        from openclaw_core.weights.names import hf_shapes

        train = self.config.train
        sender = Sender(ray.util.get_node_ip_address(), self.accelerator.device, train.collective_s)
        dtype = TORCH_DTYPES[self.config.model.dtype]
        return Publisher(hf_shapes(self.spec), dtype, int(train.publish_bucket_mb * 2**20), sender)

    def _published(self) -> Publisher:
        if self.publisher is None:
            raise PublishError(f"rank {self.rank} of the trainer publishes nothing; ask the first one")
        return self.publisher

    def _gradients(self) -> list[torch.Tensor]:
        model = cast(Any, self.model)
        return [buffer.grad_data for buffer in (*model.buffers, *model.expert_parallel_buffers)]
