"""What the gateway and the loop ask of an inference engine: tokens in, tokens out, one weight version at a time."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from openclaw_core.errors import OpenClawError
from openclaw_core.types import FinishReason, Sampling

TopLogprobs = tuple[tuple[int, float], ...]
"""The most probable tokens at one position and their log-probs, the best first."""


class EngineError(OpenClawError):
    """An engine could not do what it was asked; the message names the engine, the request and the cause."""


class EngineAborted(EngineError):
    """The engine broke a request off to take new weights. What came before is good: ask again with the ids so far."""


class EngineLost(EngineError):
    """The engine failed in the middle of an answer. What came before is good: another engine may go on with the ids so far."""


class RequestRefused(EngineError):
    """The request itself is wrong (too long, an id outside the vocabulary): no engine would take it."""


class EngineFull(EngineError):
    """The engine's queue has no room; the same request may be sent again."""


@dataclass(frozen=True, slots=True)
class Grammar:
    """What an answer must match; only for engines whose ``grammars`` is true."""

    kind: Literal["json_schema", "regex", "ebnf"]
    text: str


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """``input_ids`` [P] are fed as they are; generation ends at any of ``stop_token_ids`` or at ``max_new_tokens``.

    The last ``continued`` of ``input_ids`` are this answer's own: it goes on after a publish. Penalties count them as
    generated; ``max_new_tokens`` counts only what is still to come.
    """

    request_id: str
    input_ids: tuple[int, ...]
    sampling: Sampling
    stop_token_ids: tuple[int, ...]
    session_id: str | None = None
    """Requests of one session go to the engine that has its prefix in its cache."""
    continued: int = 0
    top_logprobs: int = 0
    """How many alternatives are reported at each position."""
    grammar: Grammar | None = None


@dataclass(frozen=True, slots=True)
class Tokens:
    """The next tokens of an answer, one or more, the stop token included.

    ``logprobs``: at the request's temperature over the full vocabulary. ``finish_reason`` is None but for the last ones.
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    weight_version: int
    """Of the weights that all of them were sampled with."""
    finish_reason: FinishReason | None = None
    top_logprobs: tuple[TopLogprobs, ...] = ()
    """[T] where the request asked for them."""


class Engine(Protocol):
    """One inference engine, or several behind a router. ``engines/local.py`` and, in production, SGLang."""

    @property
    def grammars(self) -> bool:
        """Whether ``GenerateRequest.grammar`` can be honoured."""
        ...

    def generate(self, request: GenerateRequest) -> AsyncGenerator[Tokens, None]:
        """Sample one answer, token by token; closing the generator gives the request up.

        Raises:
            EngineAborted, RequestRefused, EngineFull: see there. EngineError: anything else.
        """
        ...

    async def prefill_logprobs(
        self, prompt_ids: tuple[int, ...], response_ids: tuple[int, ...], temperature: float
    ) -> tuple[float, ...]:
        """Unshaped log-probs [T] of given response tokens (the parity probe of ALGORITHM 10). Raises EngineError."""
        ...

    async def pause(self) -> None:
        """Break off whatever runs or waits (EngineAborted), and keep what comes now waiting. Twice is once."""
        ...

    async def resume(self) -> None:
        """Take up work again. Twice is once."""
        ...

    async def load_weights(self, weights: Any, version: int, checksum: str) -> None:
        """Replace all weights by ``version``, between ``pause`` and ``resume``.

        Raises EngineError where the checksum of what arrived is another: the engine must not ``resume`` then.
        """
        ...

    async def version(self) -> int:
        """The version being served. Raises EngineError where the engine is not in a state to serve."""
        ...


class OwnedEngine(Engine, Protocol):
    """An engine whose process belongs to this run."""

    async def close(self) -> None:
        """End it; without an effect where it has ended."""
        ...
