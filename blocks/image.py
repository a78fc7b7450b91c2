"""The container image of a cluster's hosts, and how it is made."""

from __future__ import annotations

from typing import Any, Literal

from prefect.blocks.core import Block
from pydantic import BaseModel, Field


class Build(BaseModel):
    """How a host's Docker engine makes the image."""

    context: str = Field(
        default=".", title="Context", description="Directory that is sent to the engine that builds, from the checkout on."
    )
    dockerfile: str = Field(default="Dockerfile", title="Dockerfile", description="Below the context.")
    host: str | None = Field(default=None, title="Host", description="Name of the host that builds; empty: the first one.")
    args: dict[str, str] = Field(
        default_factory=dict,
        title="Build arguments",
        description="Mirrors and proxies among them (docs/IMAGE.md). They stay in the image's history: no passwords.",
    )
    network: Literal["default", "host", "none"] = Field(
        default="default", title="Network", description="Of the steps of the build; host: that of the host."
    )
    deadline_s: float = Field(default=7200, title="Deadline", description="Seconds that a build may take.")


class ImageBlock(Block):
    """Which image the hosts run. New fields need a default: documents of earlier versions must load."""

    _block_type_name = "OpenClaw Image"
    _block_type_slug = "openclaw-image"
    _description = "The container image that the hosts of a cluster run."

    image: str = Field("openclaw-ascend", title="Image", description="Repository and name, without the tag.")
    tag: str = Field("latest", title="Tag", description="Or a digest, sha256:…")
    build: Build | None = Field(default=None, title="Build", description="Empty: the image must be on a host already.")

    @classmethod
    def of(cls, reference: str, build: dict[str, Any] | None) -> ImageBlock:
        """The block for an image by its name as docker takes it, and for the values of cluster.build."""
        name, at, digest = reference.partition("@")
        if not at:
            # A colon before the last slash is that of a registry's port.
            folder, _, last = reference.rpartition("/")
            last, _, digest = last.partition(":")
            name = f"{folder}/{last}" if folder else last
        return cls(image=name, tag=digest or "latest", build=None if build is None else Build(**build))

    @property
    def reference(self) -> str:
        """As docker names it."""
        return f"{self.image}{'@' if self.tag.startswith('sha256:') else ':'}{self.tag}"
