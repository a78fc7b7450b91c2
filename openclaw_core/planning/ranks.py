"""What one rank of each role holds all the time, and the phases of its work, of which only one is on at a time."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from openclaw_core.config.schema import RunConfig
from openclaw_core.planning import hccl, serving
from openclaw_core.planning.activations import Pass
from openclaw_core.planning.head import Head
from openclaw_core.planning.placement import Placement, Role
from openclaw_core.planning.weights import (
    DTYPE_BYTES,
    FP32,
    buffer_elements,
    gradient_bytes,
    model_bytes,
    optimizer_bytes,
    parameter_sizes,
    trained_parameter_bytes,
)
from openclaw_core.weights.spec import ModelSpec

MALLOC_SHARE = {"none": 0.8, "full": 2.4}
"""What glibc's heap holds in freed blocks beyond the tensors that live, by train.recompute, as a share of the work's peak.
Measured on the SmolLM2-135M shape after four passes, the larger of two sizes each: without recompute 2,521 MB where tensors
take 1,408, with it 588 where they take 173. A CPU's matter: an NPU's allocator gives blocks back to other tensors."""
PROCESS = 420_000_000
"""Python with torch and megatron, or with transformers, before there is a model. Measured: 418 and 370 MB. On a CPU this is
the same memory."""


@dataclass(frozen=True, slots=True)
class RankPlan:
    """Bytes of one rank, by what they are for."""

    role: Role
    held: dict[str, int]
    """At all times."""
    phases: dict[str, int]
    """One after the other: the largest counts."""
    aside: dict[str, int] = field(default_factory=dict)
    """Parts of phases, and what other settings would take: for the reader, in no sum."""

    @property
    def work(self) -> int:
        """The largest phase."""
        return max(self.phases.values())

    @property
    def total(self) -> int:
        """The most that the rank needs at one time."""
        return sum(self.held.values()) + self.work


def rank_plans(config: RunConfig, spec: ModelSpec, placement: Placement) -> list[RankPlan]:
    """One plan a role: the ranks of a role are alike, the last data-parallel ones a few padding elements smaller."""
    plans = [trainer_rank(config, spec, placement.trainer)]
    if placement.scorer is not None:
        plans.append(scorer_rank(config, spec, placement.scorer))
    return [*plans, engine_rank(config, spec, placement.engine)]


def trainer_rank(config: RunConfig, spec: ModelSpec, role: Role) -> RankPlan:
    """Model, gradients and optimiser; forward, head, backward and the optimiser's step."""
    train, dtype, tp, dp = config.train, config.model.dtype, role.ranks, len(role.hosts)
    on_npu, distributed = config.cluster.npus > 0, train.distributed_optimizer
    colocated = config.scorer.placement == "colocated"
    held = {
        "parameters": trained_parameter_bytes(spec, dtype, tp, dp, distributed=distributed),
        "gradients (fp32)": gradient_bytes(spec, tp, dp, distributed=distributed),
        "optimiser": optimizer_bytes(spec, dtype, tp, dp, distributed=distributed),
    }
    if colocated and needs_start_model(config):
        held["start model"] = model_bytes(spec, dtype, tp)
    if on_npu:
        held["HCCL buffers"] = hccl.buffer_bytes(len(hccl.communicators(tp, dp, trains=True)))
    layers, head = layers_pass(config, spec, tp), response_head(config, spec, tp)
    hints = head.teacher_hidden(_hints(config)) if colocated else 0
    kept = layers.kept() + hints
    phases = {
        "output head": kept + max(head.forward(), head.backward()),
        "backward of a layer": kept + layers.backward_of_layer(),
        "embedding's gradient": layers.embedding_gradient(),
        "optimiser's step": optimizer_step_bytes(config, spec, role),
    }
    if colocated and (_hints(config) or needs_start_model(config)):
        phases["teacher and start model"] = layers.forward_only() + 2 * hints + head.forward()
    other = "none" if layers.recompute else "full"
    aside = {
        f"activations kept, recompute {train.recompute}": layers.kept(),
        f"activations kept, recompute {other}": replace(layers, recompute=not layers.recompute).kept(),
        "head alone": max(head.forward(), head.backward()),
    }
    if not on_npu:
        held["holes in malloc's heap"] = int(MALLOC_SHARE[train.recompute] * max(phases.values()))
        held["process"] = PROCESS
    return RankPlan(role, held, phases, aside)


def scorer_rank(config: RunConfig, spec: ModelSpec, role: Role) -> RankPlan:
    """The policy's weights and, where needed, the start model's; forward passes and heads."""
    tp = role.ranks
    held = {"parameters": model_bytes(spec, config.model.dtype, tp)}
    if needs_start_model(config):
        held["start model"] = model_bytes(spec, config.model.dtype, tp)
    if config.cluster.npus:
        held["HCCL buffers"] = hccl.buffer_bytes(len(hccl.communicators(tp, 1, trains=False)))
    else:
        held["process"] = PROCESS
    layers, head = layers_pass(config, spec, tp), response_head(config, spec, tp)
    hints = head.teacher_hidden(_hints(config))
    phases = {"forward pass": layers.forward_only() + 2 * hints, "output head": layers.hidden + 2 * hints + head.forward()}
    return RankPlan(role, held, phases, {"head alone": head.forward()})


def engine_rank(config: RunConfig, spec: ModelSpec, role: Role) -> RankPlan:
    """Weights, cache and a prefill. Not counted: captured graphs and the cache beyond what is needed, which SGLang takes."""
    tp = role.ranks
    held = {
        "parameters": model_bytes(spec, config.engine.dtype, tp),
        "key-value cache": serving.cache_bytes(config, spec, tp),
    }
    if head := serving.fp32_head_bytes(config, spec):
        held["fp32 output matrix"] = head
    if config.cluster.npus:
        held["HCCL buffers"] = hccl.buffer_bytes(len(hccl.communicators(tp, 1, trains=False)))
    else:
        held["process"] = PROCESS
    return RankPlan(role, held, {"prefill": serving.prefill_bytes(config, spec, tp)})


def judge_rank(config: RunConfig, spec: ModelSpec, role: Role) -> RankPlan:
    """As an engine's, with the cache that the votes on one turn take: weights, cache, a prefill."""
    tp = role.ranks
    held = {"parameters": model_bytes(spec, "bf16", tp), "key-value cache": serving.judge_cache_bytes(config, spec, tp)}
    held["HCCL buffers"] = hccl.buffer_bytes(len(hccl.communicators(tp, 1, trains=False)))
    return RankPlan(role, held, {"prefill": serving.judge_prefill_bytes(config, spec, tp)})


def layers_pass(config: RunConfig, spec: ModelSpec, tensor_parallel: int) -> Pass:
    """The largest micro-batch: train.max_tokens_per_rank, or one sample as long as the context, which is alone in its own.

    A hint comes on top of the context and is not counted: a few hundred positions of a teacher's pass, which keeps nothing.
    """
    context = config.model.context_length
    return Pass(
        spec,
        config.model.dtype,
        positions=max(config.train.max_tokens_per_rank, context),
        length=context,
        tensor_parallel=tensor_parallel,
        sequence_parallel=config.train.sequence_parallel and tensor_parallel > 1,
        flash=config.cluster.npus > 0,
        recompute=config.train.recompute == "full",
    )


def response_head(config: RunConfig, spec: ModelSpec, tensor_parallel: int) -> Head:
    """On as many response rows as a micro-batch can have."""
    positions = max(config.train.max_tokens_per_rank, config.model.context_length)
    rows = min(positions, config.rollout.batch_size * config.rollout.max_response_tokens)
    topk = config.loss.topk if config.loss.w_opd > 0 else 0
    return Head(spec, config.model.dtype, rows, config.loss.head_chunk, topk, tensor_parallel)


def optimizer_step_bytes(config: RunConfig, spec: ModelSpec, role: Role) -> int:
    """Square roots of torch's AdamW: of all parameters at once on a device, of one after another, twice, on a CPU."""
    tp, dp, distributed = role.ranks, len(role.hosts), config.train.distributed_optimizer
    shared = dp if distributed else 1
    if config.cluster.npus:
        return buffer_elements(spec, tp, dp, distributed=distributed) // shared * FP32
    return 2 * max(parameter_sizes(spec, tp)) // shared * FP32


def published_bytes(config: RunConfig, spec: ModelSpec) -> int:
    """A version of the weights on its way to engines and scorer."""
    return sum(parameter_sizes(spec)) * DTYPE_BYTES[config.model.dtype]


def needs_start_model(config: RunConfig) -> bool:
    """Whether someone must hold the start model's weights (scorer.scoring.Scorer.needs_start)."""
    return config.loss.kl_coef > 0 or (config.teacher.mode == "frozen" and config.loss.w_opd > 0)


def _hints(config: RunConfig) -> int:
    return config.loss.max_candidates if config.loss.w_opd > 0 else 0
