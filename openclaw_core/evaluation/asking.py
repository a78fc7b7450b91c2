"""How an evaluation asks: first messages as side turns, sampled as the preset samples, from which nothing is learned."""

from __future__ import annotations

from typing import Any

from openclaw_core.config.schema import RunConfig
from openclaw_core.feeder.client import Answer, GatewayClient
from openclaw_core.types import TurnType

SEED_STRIDE = 1_000_000
"""Between the sampling seeds of two series of questions: more than any number of questions."""


async def first_answer(config: RunConfig, gateway: GatewayClient, message: str, seed: int) -> Answer:
    """The answer to a session's first message, were it a session. Raises TaskFailed and FeederError as ``chat`` does."""
    rollout = config.rollout
    sampling: dict[str, Any] = {"temperature": rollout.temperature, "max_tokens": rollout.max_response_tokens}
    if rollout.repetition_penalty != 1.0:
        sampling["extra_body"] = {"repetition_penalty": rollout.repetition_penalty}
    return await gateway.chat([{"role": "user", "content": message}], TurnType.SIDE, seed=seed, **sampling)
