"""The hosts that a run owns while it lasts."""

from __future__ import annotations

from typing import Any, Literal

from prefect.blocks.core import Block
from pydantic import BaseModel, Field

from blocks.image import ImageBlock
from openclaw_core.config.cluster import ClusterConfig

Role = Literal["local", "train", "rollout", "prm", "teacher"]


class Host(BaseModel):
    """One host, what it does and how it is reached."""

    name: str = Field(title="Name", description="Lower-case letters, digits and '-'; the container's host name.")
    roles: list[Role] = Field(
        title="Roles", description="train, rollout, prm (the judge), teacher; local for this machine without containers."
    )
    npus: int = Field(default=0, title="NPUs", description="How many the run may have.")
    address: str | None = Field(
        default=None,
        title="Address",
        description="Where the other hosts and the launch machine reach it, an IP address or a name; empty: its name.",
    )
    user: str = Field(default="root", title="User", description="Who logs in by SSH; may use Docker.")
    port: int = Field(default=22, title="SSH port", description="Of its SSH server.")
    work_root: str = Field(
        default="/data/openclaw",
        title="Directory",
        description="Everything that is kept on the host is below it: models, code, runs. A disk of its own.",
    )
    docker_socket: str = Field(default="/var/run/docker.sock", title="Docker socket", description="Of its Docker engine.")
    interface: str | None = Field(
        default=None,
        title="Network interface",
        description="For HCCL and gloo, as in enp189s0f0; empty: the one that has the address.",
    )


class Ssh(BaseModel):
    """How the launch machine logs in. Empty: as the preset says, which is as ``ssh`` does for the worker's user."""

    key: str | None = Field(
        default=None, title="Private key", description="Its file on the launch machine; a password is not possible."
    )
    known_hosts: str | None = Field(
        default=None, title="Known hosts", description="File of the host keys that are trusted; empty: the user's own."
    )
    host_keys: Literal["verify", "accept-new"] | None = Field(
        default=None,
        title="Host keys",
        description="verify, or accept-new: the key of a host that is not known yet is taken and kept.",
    )
    connect_timeout_s: int | None = Field(default=None, title="Time to connect", description="Seconds.")
    command_timeout_s: float | None = Field(
        default=None, title="Time of a command", description="Seconds, for one that only looks or arranges something."
    )


class HostMount(BaseModel):
    """A directory of the host inside the container, besides the host's own directory."""

    source: str = Field(title="On the host", description="Absolute path.")
    target: str = Field(title="In the container", description="Absolute path.")
    read_only: bool = Field(default=True, title="Read-only", description="Off: the run may write there.")


class ClusterBlock(Block):
    """A set of hosts, in place of the preset's. New fields need a default: documents of earlier versions must load.

    What is empty is as the preset says; what is allowed is said by ClusterConfig, when a run is begun with the block.
    """

    _block_type_name = "OpenClaw Cluster"
    _block_type_slug = "openclaw-cluster"
    _description = "The hosts of a run, how they are reached, and the image that they run."

    hosts: list[Host] = Field(
        default_factory=lambda: [Host(name="localhost", roles=["local"])],
        title="Hosts",
        description="Name, roles, NPUs and address of each host.",
    )
    image: ImageBlock | None = Field(
        default=None, title="Image", description="Empty: everything runs on this machine, without containers."
    )
    ssh: Ssh = Field(default_factory=Ssh, title="SSH", description="How the launch machine logs in.")
    mounts: list[HostMount] | None = Field(
        default=None, title="Mounts", description="More directories of the hosts inside the containers."
    )
    environment: dict[str, str] | None = Field(
        default=None, title="Environment", description="Of every container. No secrets: it is shown."
    )
    python: str | None = Field(default=None, title="Python", description="The interpreter inside the container.")
    shm_size_mb: int | None = Field(default=None, title="Shared memory", description="MB of /dev/shm of a container.")
    http_proxy: str | None = Field(
        default=None,
        title="HTTP proxy",
        description="For downloads by the containers, not for traffic between hosts. No password: it is shown.",
    )
    https_proxy: str | None = Field(default=None, title="HTTPS proxy", description="The same.")
    no_proxy: str | None = Field(
        default=None, title="No proxy for", description="Comma-separated; the addresses of the hosts are added."
    )
    start_deadline_s: float | None = Field(
        default=None, title="Time to start", description="Seconds that the service may take to answer after a first start."
    )
    ray_deadline_s: float | None = Field(
        default=None, title="Time for Ray", description="Seconds that Ray may take until all hosts have joined."
    )
    silence_s: float | None = Field(
        default=None, title="Silence of the service", description="Seconds after which it is started again."
    )
    liveness_s: float | None = Field(
        default=None, title="Silence of a host", description="Seconds after which the loop says that it is gone."
    )
    ray_health_period_s: float | None = Field(
        default=None, title="Ray's looks at a host", description="Seconds between two of them."
    )
    ray_health_timeout_s: float | None = Field(
        default=None, title="Deadline of such a look", description="Seconds until it counts as unanswered."
    )
    ray_health_failures: int | None = Field(
        default=None, title="Unanswered looks", description="So many in a row, and Ray gives the host up."
    )
    ray_object_store_mb: int | None = Field(
        default=None, title="Ray's object store", description="MB of shared memory on each host."
    )

    @classmethod
    def of(cls, cluster: ClusterConfig) -> ClusterBlock:
        """The block that stands for this configuration."""
        values = cluster.model_dump(mode="json", exclude={"containers", "image", "build"})
        build = cluster.build.model_dump(mode="json") if cluster.build else None
        image = ImageBlock.of(cluster.image, build) if cluster.containers and cluster.image else None
        return cls(image=image, **values)

    def overrides(self) -> dict[str, Any]:
        """As overrides of a preset (dotted name → value)."""
        values = self.model_dump(mode="json", include=_SAME)
        ssh: dict[str, Any] = self.ssh.model_dump(mode="json")
        given = {**values, **{f"ssh.{name}": value for name, value in ssh.items()}}
        build = self.image.build if self.image else None
        return {
            **{f"cluster.{name}": value for name, value in given.items() if value is not None},
            "cluster.containers": self.image is not None,
            "cluster.image": self.image.reference if self.image else None,
            "cluster.build": build.model_dump(mode="json") if build else None,
        }


_SAME = set(ClusterConfig.model_fields) - {"containers", "image", "build", "ssh"}
"""Fields that block and configuration have alike."""


def save_cluster(name: str, cluster: ClusterConfig, *, overwrite: bool = False) -> None:
    """Save the block under that name, on the Prefect server that PREFECT_API_URL names.

    Raises:
        ValueError: the name is not one that Prefect takes, or, without ``overwrite``, there is such a block already.
    """
    ClusterBlock.register_type_and_schema()
    ClusterBlock.of(cluster).save(name, overwrite=overwrite)
