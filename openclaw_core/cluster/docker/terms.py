"""A container in Docker's terms, and back."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from openclaw_core.cluster.specs import ROLE_LABEL, RUN_LABEL, ContainerSpec

if TYPE_CHECKING:
    from docker.models.containers import Container

SPEC_LABEL = "openclaw.spec"
ALIVE = frozenset({"running", "restarting", "paused"})
MB = 1 << 20


@dataclass(frozen=True, slots=True)
class Found:
    """A container of a run, as it is now."""

    name: str
    role: str
    run: str
    state: str
    """Docker's word: created, running, restarting, paused, exited, dead, removing."""
    exit_code: int | None
    """None while it is alive."""
    id: str = field(compare=False)

    @property
    def alive(self) -> bool:
        """Whether it runs, or Docker is about to start it again."""
        return self.state in ALIVE


def spec_digest(spec: ContainerSpec) -> str:
    """By which a running container is known to be as the spec says."""
    return hashlib.sha256(json.dumps(asdict(spec), sort_keys=True).encode()).hexdigest()


def create_arguments(spec: ContainerSpec, absent: frozenset[str] = frozenset()) -> dict[str, Any]:
    """What docker-py's ``containers.create`` is called with. ``absent``: sources of mounts to leave out."""
    from docker.types import Mount

    arguments: dict[str, Any] = {
        "image": spec.image,
        "command": list(spec.command),
        "name": spec.name,
        "hostname": spec.hostname,
        "environment": dict(spec.environment),
        "labels": spec.labels | {SPEC_LABEL: spec_digest(spec)},
        "mounts": [
            Mount(mount.target, mount.source, type="bind", read_only=mount.read_only)
            for mount in spec.mounts
            if mount.source not in absent
        ],
        "devices": [f"{device}:{device}:rwm" for device in spec.devices],
        "network_mode": "host",
        "ipc_mode": "private",
        "shm_size": spec.shm_size_mb * MB,
        "init": True,  # passes signals on, and reaps what Ray's workers leave behind
    }
    if spec.restarts:
        arguments["restart_policy"] = {"Name": "on-failure", "MaximumRetryCount": spec.restarts}
    return arguments


def found(container: Container) -> Found:
    """One of ours, by its labels."""
    labels, state = container.labels, str(container.status)
    code = None if state in ALIVE else int(container.attrs["State"]["ExitCode"])
    return Found(str(container.name), labels.get(ROLE_LABEL, ""), labels[RUN_LABEL], state, code, str(container.id))
