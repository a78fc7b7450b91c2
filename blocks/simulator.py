"""The external model that plays the users, where the scripted personas do not."""

from __future__ import annotations

from prefect.blocks.core import Block
from pydantic import Field, SecretStr


class SimulatorBlock(Block):
    """An OpenAI-compatible API. The key stays in this block: flow parameters are stored and shown in plain text."""

    _block_type_name = "OpenClaw Simulator"
    _block_type_slug = "openclaw-simulator"
    _description = "OpenAI-compatible API of the model that plays the users."

    base_url: str = Field("https://ark.cn-beijing.volces.com/api/v3", title="Base URL")
    model_name: str = Field("glm-5.1", title="Model")
    api_key: SecretStr = Field(SecretStr(""), title="API key")
