"""The external model that plays the users, where the scripted personas do not."""

from __future__ import annotations

from typing import Any

from prefect.blocks.core import Block
from pydantic import Field, SecretStr


class SimulatorBlock(Block):
    """An OpenAI-compatible API. The key stays out of the flow's parameters, which are stored and shown in plain text."""

    _block_type_name = "OpenClaw Simulator"
    _block_type_slug = "openclaw-simulator"
    _description = "OpenAI-compatible API of the model that plays the users."

    base_url: str = Field(
        "https://ark.cn-beijing.volces.com/api/v3", title="Base URL", description="Of the API, with its /v1 or /v3."
    )
    model_name: str = Field("glm-5.1", title="Model", description="As the API calls it.")
    api_key: SecretStr = Field(SecretStr(""), title="API key", description="Empty: that of the worker's environment.")

    def overrides(self) -> dict[str, Any]:
        """The configuration that this block stands for; the key goes another way (``external_keys``)."""
        return {
            "feeder.simulator": "openai",
            "feeder.simulator_url": self.base_url,
            "feeder.simulator_model": self.model_name,
        }

    def external_keys(self) -> dict[str, str]:
        """The key for the run's secrets, if the block holds one."""
        key = self.api_key.get_secret_value()
        return {"simulator": key} if key else {}
