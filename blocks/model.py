"""The model that is trained."""

from __future__ import annotations

from typing import Any

from prefect.blocks.core import Block
from pydantic import Field


class ModelBlock(Block):
    """A model and where its files come from, in place of the preset's."""

    _block_type_name = "OpenClaw Model"
    _block_type_slug = "openclaw-model"
    _description = "The model that is trained, and where its files come from."

    model_name: str = Field(title="Name", description="The model id that clients see, and its directory under models/.")
    source: str = Field(
        title="Source",
        description="package://<distribution>==<version>/<file.gguf>, file:///<directory>, or hf://<org>/<name>[@revision].",
    )
    context_length: int = Field(1024, ge=16, title="Context length", description="Prompt plus answer, in tokens.")

    def overrides(self) -> dict[str, Any]:
        """As overrides of a preset (dotted name → value)."""
        return {"model.name": self.model_name, "model.source": self.source, "model.context_length": self.context_length}
