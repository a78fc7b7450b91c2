"""Where an actor has to be: as options of a Ray actor. On one machine there is no choice."""

from __future__ import annotations

from typing import Any

from openclaw_core.config.cluster import ClusterConfig

HOST = "host:"
"""Prefix of the resource that every host's Ray node has of its own (specs.resources)."""
JUDGE = "prm_gpu"
"""Resource of the hosts with the role prm: one for each NPU, or one where they have none."""


def on_host(cluster: ClusterConfig, name: str) -> dict[str, float]:
    """Resources to ask for, so that the actor is on that host."""
    return {f"{HOST}{name}": 1} if cluster.containers else {}


def on_prm_host(cluster: ClusterConfig) -> dict[str, Any]:
    """Options of the actor that has a prm host to itself, and comes back on it after the host was away.

    Whoever keeps state in such an actor loses it: a host that was away too long gets a new process.
    """
    host = cluster.with_role("prm")[0]
    return {"resources": {JUDGE: host.npus or 1}, "max_restarts": -1}
