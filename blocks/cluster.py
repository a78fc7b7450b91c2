"""The hosts that a run owns while it lasts."""

from __future__ import annotations

from typing import Any, Literal

from prefect.blocks.core import Block
from pydantic import BaseModel, Field

from blocks.image import ImageBlock

Role = Literal["local", "train", "rollout", "prm", "teacher"]


class Host(BaseModel):
    """One host and what it does."""

    name: str
    roles: list[Role]
    npus: int = Field(default=0, ge=0, le=16)


class ClusterBlock(Block):
    """A set of hosts, in place of the preset's. New fields need a default: documents of earlier versions must load."""

    _block_type_name = "OpenClaw Cluster"
    _block_type_slug = "openclaw-cluster"
    _description = "The hosts of a run and the image that they run."

    hosts: list[Host] = Field(
        default_factory=lambda: [Host(name="localhost", roles=["local"])],
        title="Hosts",
        description="Name, roles and number of NPUs of each host.",
    )
    image: ImageBlock | None = Field(default=None, title="Image", description="None: everything runs on this machine.")

    def overrides(self) -> dict[str, Any]:
        """As overrides of a preset (dotted name → value)."""
        return {
            "cluster.hosts": [host.model_dump() for host in self.hosts],
            "cluster.containers": self.image is not None,
            "cluster.image": self.image.reference if self.image else None,
        }
