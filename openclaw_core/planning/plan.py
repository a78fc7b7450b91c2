"""The plan of a run: ranks, hosts, and whether each fits with 10 % to spare."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import psutil
from pydantic import ValidationError

from openclaw_core.cluster.checks import MEMORY_BASE
from openclaw_core.config.schema import RunConfig
from openclaw_core.errors import OpenClawError
from openclaw_core.planning.architecture import Architecture, judge_architecture, read_architecture
from openclaw_core.planning.disk import HostNeeds, host_needs
from openclaw_core.planning.errors import PlanError
from openclaw_core.planning.placement import Placement, check_engine_cards, place
from openclaw_core.planning.ranks import RankPlan, judge_rank, published_bytes, rank_plans
from openclaw_core.weights.spec import ModelSpec

HBM_BYTES = 64 * 10**9
"""Of a 910B: npu-smi shows 65,536 MiB, of which the driver takes about 3.4 GiB when nothing runs."""
HEADROOM = 0.1
"""Share of a memory that must stay free: for fragments, and for what is not counted."""


@dataclass(frozen=True, slots=True)
class Budget:
    """One memory and what goes into it, by name. Bytes."""

    name: str
    parts: dict[str, int]
    limit: int

    @property
    def needed(self) -> int:
        """The sum."""
        return sum(self.parts.values())

    @property
    def headroom(self) -> float:
        """Share that stays free; negative where the sum is over the limit."""
        return 1 - self.needed / self.limit

    @property
    def fits(self) -> bool:
        """With the headroom that is asked for."""
        return self.headroom >= HEADROOM


@dataclass(frozen=True, slots=True)
class Remedy:
    """Other settings, and what they do to the budgets that fail."""

    settings: dict[str, Any]
    needed: dict[str, int]
    """By budget."""
    fits: bool


@dataclass(frozen=True, slots=True)
class Plan:
    """See the module's docstring."""

    config: RunConfig
    architecture: Architecture
    placement: Placement
    ranks: list[RankPlan]
    hosts: list[HostNeeds]
    budgets: list[Budget]
    remedies: list[Remedy]
    """Where a budget fails: single changes that lower it."""

    @property
    def fits(self) -> bool:
        """Whether every budget does."""
        return all(budget.fits for budget in self.budgets)


def make_plan(config: RunConfig, memory: int | None = None) -> Plan:
    """Count what a run needs. ``memory``: of this machine, in bytes, where there are no NPUs; None: ask it.

    Raises:
        PlanError: unknown model, or ranks without a place.
        ModelError: the model is not supported, or cannot be split that way.
    """
    architecture = read_architecture(config)
    spec = architecture.spec
    _check_context(config, spec)
    limit = HBM_BYTES if config.cluster.npus else memory or psutil.virtual_memory().total
    placement, ranks, budgets = _count(config, spec, limit)
    check_engine_cards(config, placement)
    failing = [budget for budget in budgets if not budget.fits]
    hosts = host_needs(config, spec, placement)
    return Plan(config, architecture, placement, ranks, hosts, budgets, _remedies(config, spec, limit, failing))


def _count(config: RunConfig, spec: ModelSpec, limit: int) -> tuple[Placement, list[RankPlan], list[Budget]]:
    placement = place(config, spec)
    ranks = rank_plans(config, spec, placement)
    if config.cluster.npus:
        static = [*_static_budget(config, ranks[-1], limit)]
        ranks += _judge(config, placement)
        return placement, ranks, [*(_device_budget(plan, limit) for plan in ranks), *static]
    return placement, ranks, [_machine_budget(config, spec, ranks, limit)]


def _judge(config: RunConfig, placement: Placement) -> list[RankPlan]:
    """Empty where it has no NPUs of this cluster, or its model's sizes are not known."""
    if placement.judge is None or (known := judge_architecture(config)) is None:
        return []
    known.spec.check_tensor_parallel(placement.judge.ranks)
    return [judge_rank(config, known.spec, placement.judge)]


def _device_budget(plan: RankPlan, limit: int) -> Budget:
    phase = max(plan.phases, key=lambda name: plan.phases[name])
    return Budget(f"{plan.role.name} rank", {**plan.held, phase: plan.work}, limit)


def _static_budget(config: RunConfig, engine: RankPlan, limit: int) -> Iterator[Budget]:
    """SGLang keeps weights and cache within engine.sglang.mem_fraction_static, however much is free."""
    if config.engine.backend == "sglang":
        parts = {name: engine.held[name] for name in ("parameters", "key-value cache")}
        yield Budget("mem_fraction_static of an engine rank", parts, int(limit * config.engine.sglang.mem_fraction_static))


def _machine_budget(config: RunConfig, spec: ModelSpec, ranks: list[RankPlan], limit: int) -> Budget:
    """All ranks share the machine with the processes around them."""
    parts = {f"{plan.role.name} ({len(plan.role.hosts) * plan.role.ranks})": _all_ranks(plan) for plan in ranks}
    parts["a published version"] = published_bytes(config, spec)
    parts["Ray, service, feeder"] = MEMORY_BASE
    return Budget(f"memory of {config.cluster.hosts[0].name}", parts, limit)


def _all_ranks(plan: RankPlan) -> int:
    return plan.total * plan.role.ranks * len(plan.role.hosts)


def _remedies(config: RunConfig, spec: ModelSpec, limit: int, failing: list[Budget]) -> list[Remedy]:
    """Each of the candidates alone, the ones that suffice first."""
    if not failing:
        return []
    found: list[Remedy] = []
    for settings in _candidates(config):
        try:
            _, _, budgets = _count(_changed(config, settings), spec, limit)
        except (OpenClawError, ValidationError):  # the ranks would have no place, or the value is out of bounds
            continue
        after = {budget.name: budget for budget in budgets}
        needed = {budget.name: after[budget.name].needed for budget in failing}
        if any(needed[budget.name] < budget.needed for budget in failing):
            found.append(Remedy(settings, needed, all(budget.fits for budget in budgets)))
    return sorted(found, key=lambda remedy: not remedy.fits)


def _candidates(config: RunConfig) -> list[dict[str, Any]]:
    train, context = config.train, config.model.context_length
    tokens = train.max_tokens_per_rank
    candidates: list[dict[str, Any]] = [
        {"train.distributed_optimizer": True},
        {"train.recompute": "full"},
        {"train.tensor_parallel": 2 * train.tensor_parallel},
        {"train.tensor_parallel": 2 * train.tensor_parallel, "train.sequence_parallel": True},
        {"scorer.tensor_parallel": 2 * config.scorer.tensor_parallel},
        {"train.max_tokens_per_rank": tokens // 2},
        {"model.context_length": context // 2, "train.max_tokens_per_rank": min(tokens, context // 2)},
        {"feeder.sessions_in_flight": max(1, config.feeder.sessions_in_flight // 2)},
        {"engine.max_batch": max(1, config.engine.max_batch // 2)},
    ]
    if train.tensor_parallel > 1 and not train.sequence_parallel:
        candidates.append({"train.sequence_parallel": True})
    return candidates


def _changed(config: RunConfig, settings: Mapping[str, Any]) -> RunConfig:
    tree = config.model_dump()
    for name, value in settings.items():
        section, leaf = name.split(".")
        tree[section][leaf] = value
    return RunConfig.model_validate(tree)


def _check_context(config: RunConfig, spec: ModelSpec) -> None:
    if config.model.context_length > spec.max_positions:
        raise PlanError(
            f"model.context_length={config.model.context_length} is over the {spec.max_positions} positions of "
            f"{config.model.name}; set it to {spec.max_positions} at most"
        )
