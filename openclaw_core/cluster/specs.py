"""What runs on each host of a cluster, as plain data: containers with their commands, environment, devices and mounts.

Computed from the configuration alone, so that ``openclaw-rl plan`` shows exactly what a launch would start.

Inside every container ``WORK`` is the host's work_root; below it the places are the same on every host:

    models/               downloaded and converted models (paths.models)
    runs/<run id>/        config.json, secrets.json, ledger, checkpoints, logs (paths.runs)
    code/<digest>/        this project's code as it was pushed
    images/               archives of images on their way to other hosts
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from openclaw_core.cluster.pinning import HOST, JUDGE, judge_units
from openclaw_core.config.cluster import ClusterConfig, HostConfig
from openclaw_core.config.schema import RunConfig
from openclaw_core.planning.placement import Placement

WORK = PurePosixPath("/openclaw")
MODELS, RUNS, CODE = WORK / "models", WORK / "runs", WORK / "code"

RAY_TOKEN = "ray-token"
"""File in the run's directory."""

RUN_LABEL, HOST_LABEL, ROLE_LABEL = "openclaw.run", "openclaw.host", "openclaw.role"

NPU_CONTROL = ("/dev/davinci_manager", "/dev/devmm_svm", "/dev/hisi_hdc")
DRIVER_MOUNTS = (
    "/usr/local/Ascend/driver",
    "/usr/local/Ascend/add-ons",
    "/usr/local/sbin/npu-smi",
    "/usr/local/bin/npu-smi",
    "/usr/local/dcmi",
    "/etc/ascend_install.info",
    "/var/log/npu/conf/slog",
)
"""Of the host's driver; those that a host does not have are left out when the container is made."""

PINNED = 1000
"""Units of a host's own resource (pinning.py), of which whoever must be on that host asks for one."""


@dataclass(frozen=True, slots=True)
class Mount:
    """A directory or file of the host in a container."""

    source: str
    target: str
    read_only: bool = True
    optional: bool = False
    """Left out where the host does not have it."""


@dataclass(frozen=True, slots=True)
class ContainerSpec:
    """One container, always with the host's network. Values of ``environment`` are shown to people: no secrets."""

    host: str
    name: str
    role: str
    """head, worker, feeder, or the name of a one-shot stage."""
    image: str
    command: tuple[str, ...]
    environment: dict[str, str] = field(default_factory=dict)
    mounts: tuple[Mount, ...] = ()
    devices: tuple[str, ...] = ()
    labels: dict[str, str] = field(default_factory=dict)
    shm_size_mb: int = 64
    restarts: int = 0
    """How often Docker starts it again when it fails (``--restart on-failure``)."""
    hostname: str | None = None


def run_path(run_id: str) -> PurePosixPath:
    """The run's directory inside a container."""
    return RUNS / run_id


def host_path(host: HostConfig, path: PurePosixPath) -> PurePosixPath:
    """Where a path below ``WORK`` is on the host itself."""
    return host.work_root / path.relative_to(WORK)


def container_name(run_id: str, role: str) -> str:
    """Unique on a host."""
    return f"openclaw-{run_id}-{role}"


def ray_container(config: RunConfig, run_id: str, host: HostConfig) -> str:
    """Name of the container of Ray on a host."""
    return container_name(run_id, "head" if host == config.cluster.head else "worker")


def labels(run_id: str, host: HostConfig, role: str) -> dict[str, str]:
    """By which a run's containers are found again."""
    return {RUN_LABEL: run_id, HOST_LABEL: host.name, ROLE_LABEL: role}


def ray_npus(host: HostConfig, placement: Placement) -> tuple[int, ...]:
    """The NPUs of a host that Ray gives out: those of trainer and scorer. Engines and judges choose theirs by number."""
    roles = (placement.trainer, placement.scorer)
    return tuple(sorted(card for role in roles if role is not None for card in role.cards_on(host.name)))


def ray_specs(config: RunConfig, run_id: str, placement: Placement, code: str) -> Iterator[ContainerSpec]:
    """Ray's head, then its workers. ``code``: digest of the pushed code."""
    head = config.cluster.head
    yield _ray(config, run_id, head, placement, code, "head", _head_options(config))
    for host in config.cluster.hosts:
        if host is not head:
            yield _ray(config, run_id, host, placement, code, "worker", _worker_options(config))


def command_spec(
    config: RunConfig, run_id: str, host: HostConfig, role: str, command: tuple[str, ...], code: str, *, devices: bool = False
) -> ContainerSpec:
    """A container that runs ``openclaw-rl <command>`` on a host, such as a stage or the feeder."""
    cluster = config.cluster
    return ContainerSpec(
        host=host.name,
        name=container_name(run_id, role),
        role=role,
        image=_image(cluster),
        command=(cluster.python, "-m", "openclaw_core.cli", *command),
        environment=environment(cluster, host, code),
        mounts=mounts(cluster, host, npu=devices),
        devices=npu_devices(host) if devices else (),
        labels=labels(run_id, host, role),
        shm_size_mb=cluster.shm_size_mb,
        hostname=host.name,
    )


def environment(cluster: ClusterConfig, host: HostConfig, code: str) -> dict[str, str]:
    """Of a container on that host; what the configuration says comes last and wins."""
    values = {
        "PYTHONPATH": str(CODE / code),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONUNBUFFERED": "1",
        # Threads that wait in a loop take the cores from the process whose turn it is.
        "OMP_WAIT_POLICY": "passive",
        "NO_COLOR": "1",
    }
    if host.interface is not None:
        values |= {"GLOO_SOCKET_IFNAME": host.interface, "HCCL_SOCKET_IFNAME": host.interface}
    return values | proxy_environment(cluster) | cluster.environment


def proxy_environment(cluster: ClusterConfig) -> dict[str, str]:
    """In both spellings; traffic between the hosts never takes a proxy."""
    values = {"http_proxy": cluster.http_proxy, "https_proxy": cluster.https_proxy}
    if not any(values.values()):
        return {}
    own = [cluster.no_proxy] if cluster.no_proxy else []
    values["no_proxy"] = ",".join([*own, "localhost", "127.0.0.1", *(host.reached_at for host in cluster.hosts)])
    return {spelling: value for name, value in values.items() if value for spelling in (name, name.upper())}


def mounts(cluster: ClusterConfig, host: HostConfig, *, npu: bool) -> tuple[Mount, ...]:
    """work_root, the driver of the NPUs, and what the configuration adds."""
    own = [Mount(str(host.work_root), str(WORK), read_only=False)]
    driver = [Mount(path, path, optional=True) for path in DRIVER_MOUNTS] if npu and host.npus else []
    more = [Mount(str(mount.source), str(mount.target), mount.read_only) for mount in cluster.mounts]
    return (*own, *driver, *more)


def npu_devices(host: HostConfig) -> tuple[str, ...]:
    """Device files of the host's NPUs; none where it has none."""
    return (*(f"/dev/davinci{number}" for number in range(host.npus)), *NPU_CONTROL) if host.npus else ()


def _image(cluster: ClusterConfig) -> str:
    assert cluster.image is not None, "ClusterConfig refuses containers without an image"
    return cluster.image


def _ray(
    config: RunConfig, run_id: str, host: HostConfig, placement: Placement, code: str, role: str, options: dict[str, object]
) -> ContainerSpec:
    cluster, cards = config.cluster, ray_npus(host, placement)
    token = run_path(run_id) / RAY_TOKEN
    options = options | {
        "--node-ip-address": host.reached_at,
        "--object-store-memory": cluster.ray_object_store_mb * 1_000_000,
        "--resources": json.dumps(resources(host, placement)),
    }
    command = (cluster.python, "-m", "ray.scripts.scripts", "start", "--block", "--disable-usage-stats")
    return ContainerSpec(
        host=host.name,
        name=container_name(run_id, role),
        role=role,
        image=_image(cluster),
        command=(*command, *(f"{name}={value}" for name, value in options.items()), *(["--head"] if role == "head" else [])),
        environment=environment(cluster, host, code) | _ray_environment(cluster, str(token), cards),
        mounts=mounts(cluster, host, npu=True),
        devices=npu_devices(host),
        labels=labels(run_id, host, role),
        shm_size_mb=cluster.shm_size_mb,
        # Ray's own daemons end when the head has declared them dead, as after a cut of the network: the container comes back.
        restarts=0 if role == "head" else 5,
        hostname=host.name,
    )


def _head_options(config: RunConfig) -> dict[str, object]:
    ports, address = config.ports, config.cluster.head.reached_at
    return {
        "--port": ports.ray_gcs,
        "--dashboard-host": address,
        "--dashboard-port": ports.ray_dashboard,
        "--ray-client-server-port": ports.ray_client,
    }


def _worker_options(config: RunConfig) -> dict[str, object]:
    return {"--address": f"{config.cluster.head.ray_address}:{config.ports.ray_gcs}"}


def resources(host: HostConfig, placement: Placement) -> dict[str, float]:
    """Custom resources of a host's Ray node."""
    found: dict[str, float] = {f"{HOST}{host.name}": PINNED}
    if cards := ray_npus(host, placement):
        found["NPU"] = len(cards)
    if "prm" in host.roles:
        found[JUDGE] = judge_units(host.name, placement)
    return found


def _ray_environment(cluster: ClusterConfig, token_file: str, cards: tuple[int, ...]) -> dict[str, str]:
    values = {
        # GCS and raylet listen on every interface whatever the options say: the token is what keeps others out. By file,
        # since a container's environment can be read by whoever may ask Docker.
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": token_file,
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
        "RAY_enable_open_telemetry": "0",
        "RAY_health_check_initial_delay_ms": "5000",
        "RAY_health_check_period_ms": f"{1000 * cluster.ray_health_period_s:.0f}",
        "RAY_health_check_timeout_ms": f"{1000 * cluster.ray_health_timeout_s:.0f}",
        "RAY_health_check_failure_threshold": str(cluster.ray_health_failures),
    }
    if cards:
        values["ASCEND_RT_VISIBLE_DEVICES"] = ",".join(map(str, cards))
    return values
