"""A run's cluster on simulated hosts: what preset 2nodes-sim needs of this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from openclaw_core.cluster.simulation import Simulation
from openclaw_core.cluster.simulation.image import SIM_IMAGE
from openclaw_core.cluster.simulation.mounts import simulated_mounts, simulated_python
from openclaw_core.config.cluster import BuildConfig, ClusterConfig

ENVIRONMENT = {
    # Ray starts its processes through bash, by name.
    "PATH": "/bin:/usr/bin",
    "HOME": "/tmp",
    "TORCHDYNAMO_DISABLE": "1",
    # All hosts share this machine's memory: each would see the others' as its own.
    "RAY_memory_monitor_refresh_ms": "0",
}


def simulated_cluster(simulation: Simulation, build_context: Path) -> ClusterConfig:
    """Of a run on these hosts. ``build_context``: of the image (image.sim_build_context)."""
    return ClusterConfig(
        containers=True,
        image=SIM_IMAGE,
        build=BuildConfig(context=build_context, network="none"),
        hosts=simulation.hosts,
        ssh=simulation.ssh,
        mounts=simulated_mounts(),
        python=simulated_python(),
        environment=ENVIRONMENT,
        shm_size_mb=1000,
        ray_object_store_mb=300,
    )


def as_overrides(cluster: ClusterConfig) -> dict[str, Any]:
    """A cluster in place of a preset's: dotted name → value."""
    values = cluster.model_dump(mode="json")
    ssh: dict[str, Any] = values.pop("ssh")
    return {f"cluster.{name}": value for name, value in values.items()} | {
        f"cluster.ssh.{name}": value for name, value in ssh.items()
    }
