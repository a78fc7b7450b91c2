"""What the gateway and the loop ask of an inference engine: tokens in, tokens out, one weight version at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from openclaw_core.errors import OpenClawError
from openclaw_core.types import FinishReason, Sampling


class EngineError(OpenClawError):
    """An engine could not do what it was asked; the message names the engine, the request and the cause."""


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """``input_ids`` [P] are fed as they are; generation ends at any of ``stop_token_ids`` or at ``max_new_tokens``."""

    request_id: str
    input_ids: tuple[int, ...]
    sampling: Sampling
    stop_token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Generation:
    """``token_ids`` [T], the stop token included; ``logprobs`` [T] at the request's temperature over the full vocabulary."""

    request_id: str
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish_reason: FinishReason
    weight_version: int
    """Version of the oldest token."""


class Engine(Protocol):
    """One inference engine. ``engines/local.py`` and, in production, SGLang."""

    async def generate(self, request: GenerateRequest) -> Generation:
        """Sample one answer. Raises EngineError."""
        ...

    async def prefill_logprobs(
        self, prompt_ids: tuple[int, ...], response_ids: tuple[int, ...], temperature: float
    ) -> tuple[float, ...]:
        """Unshaped log-probs [T] of given response tokens (the parity probe of ALGORITHM 10)."""
        ...

    async def load_weights(self, weights: Any, version: int, checksum: str) -> None:
        """Replace all weights by ``version``; refuses (EngineError) a set whose checksum is another."""
        ...

    async def version(self) -> int:
        """The version being served."""
        ...
