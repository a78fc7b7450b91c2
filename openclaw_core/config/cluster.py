"""The hosts of a run, how they are reached, and what runs on them."""

from __future__ import annotations

from ipaddress import ip_address
from pathlib import Path, PurePosixPath
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from openclaw_core.config.section import SECRET, Section

RoleName = Literal["local", "train", "rollout", "prm", "teacher"]


def _absolute(path: PurePosixPath) -> PurePosixPath:
    if not path.is_absolute() or ".." in path.parts:
        raise ValueError(f"{path} must be an absolute path without '..'")
    return path


HostPath = Annotated[PurePosixPath, AfterValidator(_absolute)]
"""A path on a host, which need not exist on this machine."""


NO_PASSWORD = (
    "holds a user or a password, which the run's config.json, Prefect and `docker inspect` would show; name a proxy that asks "
    "for none, such as one on each host that adds the password itself (cntlm, or squid with login=): http://127.0.0.1:3128"
)


def _without_password(url: str, name: str = "it") -> str:
    if "@" in url:  # nothing else of a proxy's address has one
        raise PydanticCustomError(SECRET, "{name} " + NO_PASSWORD, {"name": name})
    return url


def _proxies_without_password(values: dict[str, str]) -> dict[str, str]:
    for name, value in values.items():
        if name.lower().endswith("_proxy"):
            _without_password(value, name)
    return values


ProxyUrl = Annotated[str, AfterValidator(_without_password)]
Variables = Annotated[dict[str, str], AfterValidator(_proxies_without_password)]
"""Name → value."""


class HostConfig(Section):
    """One host, what it does and how it is reached."""

    name: str = Field(pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$", description="Lower-case letters, digits and '-'.")
    roles: tuple[RoleName, ...] = Field(
        min_length=1, description="What the host does: head, train, scorer, rollout, prm; local alone on one machine."
    )
    npus: int = Field(default=0, ge=0, le=16, description="NPUs of the host.")
    address: str | None = Field(
        default=None,
        pattern=r"^[A-Za-z0-9.:-]+$",
        description="Where the other hosts and the launch machine reach it, an IP address or a name; None: its name.",
    )
    user: str = Field(default="root", pattern=r"^[a-z_][a-z0-9_-]*$", description="Who logs in by SSH; may use Docker.")
    port: int = Field(default=22, ge=1, le=65535, description="Of its SSH server.")
    work_root: HostPath = Field(
        default=PurePosixPath("/data/openclaw"),
        description="Everything that is kept on the host is below it: models, code, runs. A disk of its own.",
    )
    docker_socket: HostPath = Field(default=PurePosixPath("/var/run/docker.sock"), description="Of the host's Docker engine.")
    interface: str | None = Field(
        default=None, description="Network interface for HCCL and gloo; None: the one that has the address."
    )

    @property
    def reached_at(self) -> str:
        """IP address or name."""
        return self.address or self.name

    @property
    def ray_address(self) -> str:
        """As part of a URL: an IPv6 address has brackets."""
        try:
            return f"[{self.reached_at}]" if ip_address(self.reached_at).version == 6 else self.reached_at
        except ValueError:
            return self.reached_at


class SshConfig(Section):
    """How the launch machine logs in. None: as ``ssh`` does for this user, with agent and ~/.ssh/config."""

    key: Path | None = Field(default=None, description="Private key file; never a password.")
    known_hosts: Path | None = Field(default=None, description="Host keys that are trusted; None: this user's own.")
    host_keys: Literal["verify", "accept-new"] = Field(
        default="verify", description="accept-new: the key of a host that is not known yet is taken and kept."
    )
    connect_timeout_s: int = Field(default=10, ge=1, le=600, description="For an SSH connection.")
    command_timeout_s: float = Field(default=120, gt=0, description="For a command that only looks or arranges something.")


class BuildConfig(Section):
    """How the image is made."""

    context: Path = Field(default=Path(), description="Directory that is sent to the engine that builds.")
    dockerfile: str = Field(default="Dockerfile", description="Below the context.")
    host: str | None = Field(default=None, description="Name of the host that builds; None: the first one.")
    args: Variables = Field(default_factory=dict, description="Build arguments, mirrors and proxies among them.")
    network: Literal["default", "host", "none"] = Field(default="default", description="Of the build's containers.")
    deadline_s: float = Field(default=7200, gt=0, description="Of one build.")


class MountConfig(Section):
    """A directory of the host inside the container, besides work_root."""

    source: HostPath
    target: HostPath
    read_only: bool = Field(default=True, description="The container cannot write there.")


class ClusterConfig(Section):
    """The hosts of a run. Without containers everything runs on this machine."""

    containers: bool = Field(default=False, description="Run Ray in Docker containers of the project's image.")
    image: str | None = Field(default=None, description="Image name and tag; needed with containers.")
    build: BuildConfig | None = Field(default=None, description="None: the image must be on a host already.")
    hosts: tuple[HostConfig, ...] = Field(min_length=1, description="Every host with its roles.")
    ssh: SshConfig = Field(default_factory=SshConfig)
    mounts: tuple[MountConfig, ...] = Field(
        default=(), description="Directories of the hosts that containers see, over those of the project and of the driver."
    )
    environment: Variables = Field(default_factory=dict, description="Of every container; no secrets: they are shown.")
    python: str = Field(default="python", description="The interpreter inside the container.")
    shm_size_mb: int = Field(default=64_000, ge=64, description="/dev/shm of a container; shared with nobody.")
    http_proxy: ProxyUrl | None = Field(
        default=None, description="For downloads by the containers, not for traffic between hosts. Without a password."
    )
    https_proxy: ProxyUrl | None = Field(default=None, description="The same.")
    no_proxy: str | None = Field(default=None, description="Comma-separated; the addresses of the hosts are added.")
    start_deadline_s: float = Field(
        default=300, gt=0, description="How long the training service may take to answer after a first start."
    )
    ray_deadline_s: float = Field(default=120, gt=0, description="How long Ray may take until all hosts have joined.")
    silence_s: float = Field(default=60, gt=0, description="Silence of the training service after which it is started again.")
    liveness_s: float = Field(default=10, gt=0, description="Silence of a host after which /status and the log say so.")
    ray_health_period_s: float = Field(default=3, gt=0, description="Between two looks of Ray's head at a host.")
    ray_health_timeout_s: float = Field(default=10, gt=0, description="Deadline of one such look.")
    ray_health_failures: int = Field(
        default=5,
        ge=1,
        description="So many looks in a row without an answer, and Ray gives the host up, and its processes end. Too few: a "
        "host that is merely busy is given up; Ray's own settings notice a lost one only after a minute.",
    )
    ray_object_store_mb: int = Field(default=1500, ge=100, description="Shared memory of Ray's object store on each host.")

    @model_validator(mode="after")
    def _whole(self) -> Self:
        names = [host.name for host in self.hosts]
        if repeated := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"cluster.hosts has {', '.join(repeated)} more than once; give each host its own name")
        if not self.containers:
            return self
        if self.image is None:
            raise ValueError("cluster.containers needs cluster.image; set it to the name and tag of the image")
        places = [(host.reached_at, host.port) for host in self.hosts]
        if repeated := sorted({f"{at}:{port}" for at, port in places if places.count((at, port)) > 1}):
            raise ValueError(f"two hosts of cluster.hosts are reached at {', '.join(repeated)}; each has its own address")
        roles = {role for host in self.hosts for role in host.roles}
        if "local" in roles:
            raise ValueError("role local is for a run without containers; give each host train, rollout, prm or teacher")
        if missing := [role for role in ("train", "rollout") if role not in roles]:
            raise ValueError(f"no host of cluster.hosts has the role {' or '.join(missing)}; give it to one")
        return self

    @property
    def npus(self) -> int:
        """NPUs over all hosts."""
        return sum(host.npus for host in self.hosts)

    @property
    def head(self) -> HostConfig:
        """The host of Ray's head, the training service and the gateway: the first with the role train."""
        return next((host for host in self.hosts if "train" in host.roles), self.hosts[0])

    @property
    def head_address(self) -> str:
        """Where gateway, control API and Ray's dashboard are reached from the launch machine."""
        return self.head.ray_address if self.containers else "127.0.0.1"

    def with_role(self, role: RoleName) -> tuple[HostConfig, ...]:
        """The hosts that have it, in order."""
        return tuple(host for host in self.hosts if role in host.roles)
