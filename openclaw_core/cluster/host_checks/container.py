"""The container that looks from inside (inside.py) on a host: read by env-check and by the dry run."""

from __future__ import annotations

from dataclasses import replace

from openclaw_core.cluster.specs import ContainerSpec, command_spec
from openclaw_core.config.cluster import HostConfig
from openclaw_core.config.schema import RunConfig

ROLE = "env-check"


def inside_spec(config: RunConfig, run_id: str, host: HostConfig, code: str, source: str) -> ContainerSpec:
    """``source``: text of inside.py, so that it runs where no code was pushed yet. NPUs are counted where the host has some."""
    spec = command_spec(config, run_id, host, ROLE, (), code, devices=bool(host.npus))
    return replace(spec, command=(config.cluster.python, "-c", source, *(["--devices"] if host.npus else [])))
