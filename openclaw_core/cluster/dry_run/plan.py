"""What a run would do on every host, without asking any of them: commands, containers, files, copies, ports.

Computed from the configuration and from the same specs that a launch starts (specs.py). Of keys and passwords four stars are
shown.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from openclaw_core.cluster.dry_run import stages
from openclaw_core.cluster.dry_run.nouns import LAUNCH, Action, DryRun, HostLine
from openclaw_core.cluster.specs import WORK
from openclaw_core.config.cluster import ClusterConfig, HostConfig
from openclaw_core.config.schema import RunConfig
from openclaw_core.planning.placement import Placement, place_ranks

__all__ = ["LAUNCH", "Action", "DryRun", "HostLine", "as_json", "dry_run"]

ON_HOSTS = (
    stages.begin,
    stages.build_image,
    stages.distribute_image,
    stages.download_model,
    stages.convert_checkpoint,
    stages.env_check,
    stages.launch_ray,
    stages.train_loop,
    stages.feeder,
    stages.teardown,
)
"""In the order of the flow."""


def dry_run(config: RunConfig, run_id: str) -> DryRun:
    """What ``run_id`` would do. Pure: no host is asked, no file read.

    Raises:
        PlanError: ranks have no place.
        ClusterError: the model is a directory that the containers do not see.
    """
    placement = place_ranks(config)
    asked = stages.Asked(config, run_id, placement)
    if not config.cluster.containers:
        return DryRun(config.preset, run_id, (), tuple(stages.here(asked)))
    hosts = tuple(_host_line(config.cluster, host, placement) for host in config.cluster.hosts)
    return DryRun(config.preset, run_id, hosts, tuple(action for stage in ON_HOSTS for action in stage(asked)))


def as_json(dry: DryRun) -> dict[str, Any]:
    """For programs."""
    return asdict(dry)


def _host_line(cluster: ClusterConfig, host: HostConfig, placement: Placement) -> HostLine:
    roles = (*placement.roles, placement.judge)
    cards = {role.name: role.cards_on(host.name) for role in roles if role is not None}
    key = f" -i {cluster.ssh.key}" if cluster.ssh.key else ""
    ssh = f"ssh{key} -p {host.port} {host.user}@{host.reached_at}"
    npus = {name: _range(held) for name, held in cards.items() if held}
    return HostLine(host.name, ssh, host.roles, npus, f"{host.work_root} ({WORK} in containers)", str(host.docker_socket))


def _range(cards: tuple[int, ...]) -> str:
    """They follow each other."""
    return f"{min(cards)}-{max(cards)}" if len(cards) > 1 else str(min(cards))
