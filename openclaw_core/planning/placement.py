"""Which NPUs of which host each role gets, by counting: all ranks that share one copy of the model are on one host."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from openclaw_core.config.cluster import HostConfig, RoleName
from openclaw_core.config.schema import RunConfig
from openclaw_core.planning.errors import PlanError
from openclaw_core.weights.spec import ModelSpec


@dataclass(frozen=True, slots=True)
class Role:
    """Copies of the model that do the same, each on ``ranks`` devices, and the hosts of the copies."""

    name: str
    ranks: int
    hosts: tuple[str, ...]
    """Of each copy."""
    cards: tuple[tuple[int, ...], ...] = ()
    """NPUs of each copy, by their number on its host; empty where there are none."""

    @property
    def layout(self) -> str:
        """As in TP2 x 2."""
        return f"TP{self.ranks} x {len(self.hosts)}"

    def ranks_on(self, host: str) -> int:
        """Devices of this role on a host."""
        return self.ranks * self.hosts.count(host)

    def cards_on(self, host: str) -> tuple[int, ...]:
        """This role's NPUs on a host."""
        return tuple(card for at, cards in zip(self.hosts, self.cards, strict=False) if at == host for card in cards)


@dataclass(frozen=True, slots=True)
class Placement:
    """Every role's place. ``scorer`` is None where the trainer's ranks score."""

    trainer: Role
    scorer: Role | None
    engine: Role
    judge: Role | None = None
    """A server on each host with the role prm, on the NPUs that the others leave; None where the run starts none."""

    @property
    def roles(self) -> tuple[Role, ...]:
        """Those that there are and hold the policy: not the judge."""
        return tuple(role for role in (self.trainer, self.scorer, self.engine) if role is not None)


def place(config: RunConfig, spec: ModelSpec) -> Placement:
    """Place trainer, engines, scorer and judge in this order, on the first NPUs that are left. Without NPUs all is here.

    Raises:
        PlanError: a host has too few NPUs; the message has the sum.
        ModelError: the model cannot be split over so many ranks.
    """
    placement = place_ranks(config)
    for role in placement.roles:
        spec.check_tensor_parallel(role.ranks)
    return placement


def place_ranks(config: RunConfig) -> Placement:
    """``place`` for a model whose files are elsewhere: whether it can be split so is not looked at. Raises PlanError."""
    train, scorer, engine = config.train, config.scorer, config.engine
    separate = scorer.placement == "separate"
    engine_ranks = engine.sglang.tensor_parallel if engine.backend == "sglang" else 1
    if config.cluster.npus == 0:
        return Placement(
            Role("trainer", train.tensor_parallel, (_first(config, "train"),) * train.data_parallel),
            Role("scorer", scorer.tensor_parallel, (_first(config, "teacher"),) * scorer.data_parallel) if separate else None,
            Role("engine", engine_ranks, _in_turn(config, "rollout", engine.count)),
        )
    rooms = _Rooms(config.cluster.hosts)
    return Placement(
        trainer=rooms.take("trainer", "train", train.tensor_parallel, train.data_parallel),
        engine=rooms.take("engine", "rollout", engine_ranks, engine.count),
        scorer=rooms.take("scorer", "teacher", scorer.tensor_parallel, scorer.data_parallel) if separate else None,
        judge=rooms.rest("judge", "prm") if config.judge_servers else None,
    )


def check_engine_cards(config: RunConfig, placement: Placement) -> None:
    """Whether engine.sglang.devices, where they are named, are the NPUs that the plan gives the servers.

    Raises PlanError with the cards of every role on that host.
    """
    sglang, engine = config.engine.sglang, placement.engine
    if config.engine.backend != "sglang" or not engine.cards or not sglang.devices:
        return
    for host in dict.fromkeys(engine.hosts):
        theirs = engine.cards_on(host)
        if sglang.devices[sglang.base_gpu_id :][: len(theirs)] != theirs:
            places = "; ".join(f"{role.name} {_listed(cards)}" for role in placement.roles if (cards := role.cards_on(host)))
            raise PlanError(
                f"engine.sglang.devices={list(sglang.devices)} with base_gpu_id={sglang.base_gpu_id} are not the engine's NPUs "
                f"on {host}, which are shared out as: {places}; leave engine.sglang.devices out, or set them to "
                f"{list(theirs)} and base_gpu_id to 0"
            )


def _first(config: RunConfig, role: RoleName) -> str:
    """The host of a role where there are no NPUs to count: the first that has it, or the head."""
    return _in_turn(config, role, 1)[0]


def _in_turn(config: RunConfig, role: RoleName, copies: int) -> tuple[str, ...]:
    """The hosts of a role's copies where there are no NPUs to count: one after the other, so that a lost host costs few."""
    hosts = config.cluster.with_role(role) or (config.cluster.head,)
    return tuple(hosts[index % len(hosts)].name for index in range(copies))


class _Rooms:
    """Which NPUs of each host are still free."""

    def __init__(self, hosts: Sequence[HostConfig]) -> None:
        self._hosts = hosts
        self._taken: dict[str, Counter[str]] = {host.name: Counter() for host in hosts}
        """NPUs that each role has, by host."""

    def take(self, name: str, role: str, ranks: int, copies: int) -> Role:
        """Give each copy the first host of the role that has room for all of its ranks."""
        hosts = [host for host in self._hosts if role in host.roles]
        if not hosts:
            raise PlanError(f"no host of cluster.hosts has the role {role!r}; give it to one")
        before = self._sum(hosts)
        chosen: list[str] = []
        cards: list[tuple[int, ...]] = []
        for _ in range(copies):
            host = next((host for host in hosts if self._free(host) >= ranks), None)
            if host is None:
                raise PlanError(
                    f"{name}: {copies} x {ranks} = {copies * ranks} NPUs do not fit into those of role {role} ({before} free); "
                    + self._remedy(hosts, role, ranks, copies, len(chosen))
                )
            first = host.npus - self._free(host)
            self._taken[host.name][name] += ranks
            chosen.append(host.name)
            cards.append(tuple(range(first, first + ranks)))
        return Role(name, ranks, tuple(chosen), tuple(cards))

    def rest(self, name: str, role: str) -> Role | None:
        """A copy on each host of the role, on as many of its free NPUs as every one of them has: a power of two.

        None where no host of the role has NPUs.
        """
        hosts = [host for host in self._hosts if role in host.roles and host.npus]
        if not hosts:
            return None
        least = min(self._free(host) for host in hosts)
        if least == 0:
            raise PlanError(f"{name}: no NPU is left for it on a host of role {role} ({self._sum(hosts)} free)")
        ranks = 1 << (least.bit_length() - 1)
        first = [host.npus - self._free(host) for host in hosts]
        cards = tuple(tuple(range(begin, begin + ranks)) for begin in first)
        return Role(name, ranks, tuple(host.name for host in hosts), cards)

    def _free(self, host: HostConfig) -> int:
        return host.npus - self._taken[host.name].total()

    def _sum(self, hosts: Sequence[HostConfig]) -> str:
        """As in: train 8 - 4 trainer = 4."""
        rooms = [" - ".join((f"{host.name} {host.npus}", *_shares(self._taken[host.name]))) for host in hosts]
        return f"{' + '.join(rooms)} = {sum(self._free(host) for host in hosts)}"

    def _remedy(self, hosts: Sequence[HostConfig], role: str, ranks: int, copies: int, placed: int) -> str:
        if placed:
            return f"{placed} of {copies} copies have a place: ask for fewer, or add a host with role {role}"
        largest = max(self._free(host) for host in hosts)
        return (
            f"one copy needs {ranks} NPUs of one host and the largest has {largest} free: lower its tensor_parallel, or what "
            "else has NPUs there"
        )


def _shares(taken: Counter[str]) -> Iterator[str]:
    return (f"{number} {name}" for name, number in taken.items())


def _listed(cards: Sequence[int]) -> str:
    """As in 4-5: they are consecutive."""
    return f"{cards[0]}-{cards[-1]}" if len(cards) > 1 else str(cards[0])
