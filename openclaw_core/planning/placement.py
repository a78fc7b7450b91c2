"""Which NPUs of which host each role gets, by counting: all ranks that share one copy of the model are on one host."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from openclaw_core.config.schema import HostConfig, RunConfig
from openclaw_core.planning.errors import PlanError
from openclaw_core.weights.spec import ModelSpec


@dataclass(frozen=True, slots=True)
class Role:
    """Copies of the model that do the same, each on ``ranks`` devices, and the hosts of the copies."""

    name: str
    ranks: int
    hosts: tuple[str, ...]
    """Of each copy."""

    @property
    def layout(self) -> str:
        """As in TP2 x 2."""
        return f"TP{self.ranks} x {len(self.hosts)}"

    def ranks_on(self, host: str) -> int:
        """Devices of this role on a host."""
        return self.ranks * self.hosts.count(host)


@dataclass(frozen=True, slots=True)
class Placement:
    """Every role's place. ``scorer`` is None where the trainer's ranks score."""

    trainer: Role
    scorer: Role | None
    engine: Role

    @property
    def roles(self) -> tuple[Role, ...]:
        """Those that there are."""
        return tuple(role for role in (self.trainer, self.scorer, self.engine) if role is not None)


def place(config: RunConfig, spec: ModelSpec) -> Placement:
    """Place trainer, then scorer; the engines share what is left of the rollout hosts evenly. Without NPUs all is here.

    Raises:
        PlanError: a host has too few NPUs; the message has the sum.
        ModelError: the model cannot be split over so many ranks.
    """
    train, scorer, count = config.train, config.scorer, config.engine.count
    separate = scorer.placement == "separate"
    spec.check_tensor_parallel(train.tensor_parallel)
    if separate:
        spec.check_tensor_parallel(scorer.tensor_parallel)
    if config.cluster.npus == 0:
        here = config.cluster.hosts[0].name
        return Placement(
            Role("trainer", train.tensor_parallel, (here,) * train.data_parallel),
            Role("scorer", scorer.tensor_parallel, (here,) * scorer.data_parallel) if separate else None,
            Role("engine", 1, (here,) * count),
        )
    free = {host.name: host.npus for host in config.cluster.hosts}
    trainers = _take(free, config, "trainer", "train", train.tensor_parallel, train.data_parallel)
    scorers = _take(free, config, "scorer", "teacher", scorer.tensor_parallel, scorer.data_parallel) if separate else None
    ranks = _left_for_engines(free, config)
    spec.check_tensor_parallel(ranks)
    return Placement(trainers, scorers, _take(free, config, "engine", "rollout", ranks, count))


def _take(free: dict[str, int], config: RunConfig, name: str, role: str, ranks: int, copies: int) -> Role:
    """Give each copy the first host of the role that has room for all of its ranks."""
    hosts = _with_role(config, role)
    before = dict(free)
    chosen: list[str] = []
    for _ in range(copies):
        host = next((host.name for host in hosts if free[host.name] >= ranks), None)
        if host is None:
            raise PlanError(_too_few(before, hosts, name, role, ranks, copies, len(chosen)))
        free[host] -= ranks
        chosen.append(host)
    return Role(name, ranks, tuple(chosen))


def _left_for_engines(free: Mapping[str, int], config: RunConfig) -> int:
    """NPUs of one engine."""
    hosts, count = _with_role(config, "rollout"), config.engine.count
    left = sum(free[host.name] for host in hosts)
    if left < count:
        rooms = " + ".join(f"{host.name} {free[host.name]}" for host in hosts)
        raise PlanError(
            f"engine.count={count} engines have {left} NPUs ({rooms}) after trainer and scorer have theirs; lower "
            "train.tensor_parallel x train.data_parallel or the scorer's, or add a host with role rollout"
        )
    return min(left // count, max(free[host.name] for host in hosts))


def _with_role(config: RunConfig, role: str) -> list[HostConfig]:
    hosts = [host for host in config.cluster.hosts if role in host.roles]
    if not hosts:
        raise PlanError(f"no host of cluster.hosts has the role {role!r}; give it to one")
    return hosts


def _too_few(
    free: Mapping[str, int], hosts: list[HostConfig], name: str, role: str, ranks: int, copies: int, placed: int
) -> str:
    rooms = " + ".join(f"{host.name} {free[host.name]}" for host in hosts)
    largest = max(free[host.name] for host in hosts)
    why = (
        f"one copy needs {ranks} NPUs of one host and the largest has {largest} free: lower its tensor_parallel, or what else "
        "has NPUs there"
        if placed == 0
        else f"{placed} of {copies} copies have a place: lower its data_parallel, or add a host with role {role}"
    )
    return (
        f"{name}: {copies} x {ranks} = {copies * ranks} NPUs do not fit into those of role {role} "
        f"({rooms} = {sum(free[host.name] for host in hosts)} free); {why}"
    )
