"""Where an actor has to be: as resources of a Ray actor. On one machine there is no choice."""

from __future__ import annotations

from openclaw_core.config.cluster import ClusterConfig
from openclaw_core.planning.placement import Placement

HOST = "host:"
"""Prefix of the resource that every host's Ray node has of its own (specs.resources)."""
JUDGE = "prm_gpu"
"""Resource of the hosts with the role prm: one for each NPU of the judge there, or one where it has none."""


def on_host(cluster: ClusterConfig, name: str) -> dict[str, float]:
    """Resources to ask for, so that the actor is on that host."""
    return {f"{HOST}{name}": 1} if cluster.containers else {}


def on_prm_host(cluster: ClusterConfig, name: str, placement: Placement) -> dict[str, float]:
    """Resources to ask for, so that the actor has the judge's place on that host to itself."""
    return {**on_host(cluster, name), JUDGE: judge_units(name, placement)}


def judge_units(name: str, placement: Placement) -> float:
    """How much of the judge's resource a host with the role prm has."""
    return (placement.judge.ranks_on(name) if placement.judge is not None else 0) or 1
