"""Where a run has its SGLang servers, by its plan: host, address, cards, and the file with the key that they ask for."""

from __future__ import annotations

from pathlib import PurePath

from openclaw_core.config.cluster import HostConfig
from openclaw_core.config.schema import RunConfig
from openclaw_core.engines.sglang.command import LOOPBACK, ServerAt, ServerKey
from openclaw_core.planning.placement import place_ranks


def engine_at(config: RunConfig, run: PurePath, index: int, key: str) -> ServerAt:
    """Of engine ``index``; beside the service it is on loopback. ``run``: the run's directory there."""
    role = place_ranks(config).engine
    host = role.hosts[index]
    beside = not config.cluster.containers or host == config.cluster.head.name
    address = LOOPBACK if beside else next(each.reached_at for each in config.cluster.hosts if each.name == host)
    cards = role.cards[index] if role.cards and not config.engine.sglang.devices else ()
    return ServerAt(address, cards, ServerKey(key, run / f"{engine_name(index)}.yaml"))


def judge_at(config: RunConfig, run: PurePath, host: HostConfig, key: str) -> ServerAt:
    """Of the judge's server on a host with the role prm."""
    role = place_ranks(config).judge
    cards = role.cards_on(host.name) if role is not None else ()
    return ServerAt(host.reached_at, cards, ServerKey(key, run / f"{judge_name(host)}.yaml"))


def engine_name(index: int) -> str:
    """Of an engine's server, in records, logs and messages."""
    return f"sglang-{index}"


def judge_name(host: HostConfig) -> str:
    """Of a judge's server, in records, logs and messages."""
    return f"judge-{host.name}"
