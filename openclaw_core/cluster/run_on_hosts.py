"""A run's own files on its hosts: this project's code, the configuration as the containers read it, keys where they belong."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import structlog

from openclaw_core.cluster.copies.code import built_wheel, push_code
from openclaw_core.cluster.errors import ClusterError
from openclaw_core.cluster.hosts import Host, Hosts, on_each
from openclaw_core.cluster.specs import MODELS, RAY_TOKEN, RUNS, host_path, run_path
from openclaw_core.config.env import HUB
from openclaw_core.config.schema import RunConfig
from openclaw_core.rundir import RunDir, RunSecrets

log = structlog.get_logger(__name__)

CODE_DIGEST = "code-digest"
"""File in the run's directory on the launch machine."""


def push_project(run: RunDir, hosts: Hosts) -> str:
    """Bring this project as it is now to every host that does not have it, and note its digest. Raises ClusterError.

    Built anew each time, so that a retry after a change runs the changed code; the same content has the same digest.
    """
    with built_wheel() as wheel:
        digest = push_code(hosts, wheel, lambda line: log.info("progress", stage="code", line=line))
    (run.path / CODE_DIGEST).write_text(digest)
    return digest


def project_digest(run: RunDir) -> str:
    """The digest of the code that the run's hosts were given last. Raises ClusterError where they were given none."""
    try:
        return (run.path / CODE_DIGEST).read_text()
    except FileNotFoundError:
        raise ClusterError(f"run {run.run_id} has no code on its hosts yet: run the stage distribute-image first") from None


def config_inside(config: RunConfig) -> RunConfig:
    """The configuration as the containers read it: their places for files, and the gateway on the head's own address."""
    return config.model_copy(
        update={
            "paths": config.paths.model_copy(update={"runs": Path(RUNS), "models": Path(MODELS)}),
            "gateway": config.gateway.model_copy(update={"host": config.cluster.head.reached_at}),
        }
    )


def keys_inside(keys: RunSecrets) -> RunSecrets:
    """The keys that service and feeder need. The hub's is not one: it is on a host for the time of a download (models.py)."""
    return replace(keys, external_keys={what: key for what, key in keys.external_keys.items() if what != HUB})


def push_run(config: RunConfig, run: RunDir, hosts: Hosts) -> None:
    """Write configuration and keys below every host's work_root, readable by their owner only.

    Ray's token goes to all, since a worker without it cannot join; the other keys to the head alone, where service and feeder
    are. Raises ClusterError.
    """
    keys = run.secrets()
    text = config_inside(config).model_dump_json(indent=2).encode()

    def write(host: Host) -> None:
        place = host_path(host.config, run_path(run.run_id))
        host.write(place / run.config_file.name, text, mode=0o644)
        host.write(place / RAY_TOKEN, keys.ray_token.encode())
        if host.config is config.cluster.head:
            host.write(place / run.secrets_file.name, json.dumps(asdict(keys_inside(keys)), indent=2).encode())

    on_each(hosts.all, write)
