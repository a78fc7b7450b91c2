"""The stages of a run on hosts of its own, as plain functions: each returns what it did, in words for people.

They are called again at every attempt: what is in place is found and taken.
"""

from __future__ import annotations

from collections.abc import Callable

from openclaw_core.cluster.copies import models
from openclaw_core.cluster.docker import images
from openclaw_core.cluster.host_checks import HostCheck, check_hosts
from openclaw_core.cluster.hosts import Hosts
from openclaw_core.cluster.run_on_hosts import project_digest, push_project, push_run
from openclaw_core.config.env import HUB
from openclaw_core.config.schema import RunConfig
from openclaw_core.rundir import RunDir

Tell = Callable[[str], None]
"""Told one line of progress."""


def build_image(config: RunConfig, run: RunDir, tell: Tell) -> tuple[bool, str]:
    """Build the image on the host that builds. Whether it was there already, and what it is. Raises ClusterError."""
    with Hosts(config.cluster) as hosts:
        built = images.build_image(config, hosts, tell)
    return built.reused, f"{config.cluster.image} on {built.host}, {built.image_id[:19]}"


def distribute_image(config: RunConfig, run: RunDir, tell: Tell) -> tuple[bool, str]:
    """Bring image, code and configuration to every host. Raises ClusterError."""
    with Hosts(config.cluster) as hosts:
        sent = images.distribute_image(config, hosts, tell)
        digest = push_project(run, hosts)
        push_run(config, run, hosts)
    new = [each.host for each in sent if not each.skipped]
    return not new, f"image sent to {', '.join(new) or 'no host, all have it'}; code {digest[:12]} is on all hosts"


def download_model(config: RunConfig, run: RunDir, tell: Tell) -> tuple[bool, str]:
    """Bring the model's files to every host that needs them. Raises ClusterError."""
    with Hosts(config.cluster) as hosts:
        token = run.secrets().external_keys.get(HUB)
        return models.download_on_hosts(config, run.run_id, hosts, project_digest(run), tell, token=token)


def convert_checkpoint(config: RunConfig, run: RunDir, tell: Tell) -> tuple[bool, str]:
    """Convert the model once and bring the result to every trainer and scorer host. Raises ClusterError."""
    with Hosts(config.cluster) as hosts:
        return models.convert_on_hosts(config, run.run_id, hosts, project_digest(run), tell)


def env_check(config: RunConfig, run: RunDir) -> list[HostCheck]:
    """Look at every host. Never raises for what it finds there. Raises ClusterError: no stage has brought the code there."""
    with Hosts(config.cluster) as hosts:
        return check_hosts(config, run.run_id, hosts, code=project_digest(run))
