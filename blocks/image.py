"""The container image of a cluster's hosts."""

from __future__ import annotations

from prefect.blocks.core import Block
from pydantic import Field


class ImageBlock(Block):
    """Which image the hosts run."""

    _block_type_name = "OpenClaw Image"
    _block_type_slug = "openclaw-image"
    _description = "The container image that the hosts of a cluster run."

    image: str = Field("openclaw-ascend", title="Image", description="Repository and name, without the tag.")
    tag: str = Field("latest", title="Tag")

    @property
    def reference(self) -> str:
        """As docker names it."""
        return f"{self.image}:{self.tag}"
