"""Which sampling parameters a turn really gets (ALGORITHM 6: pinned on main turns, the client's on side turns)."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Literal

from openclaw_core.config.training import RolloutConfig
from openclaw_core.gateway.errors import context_overflow
from openclaw_core.gateway.schema import ChatRequest
from openclaw_core.types import Sampling, TurnType

_CLIENT = {"temperature", "top_p", "top_k", "min_p", "repetition_penalty", "frequency_penalty", "presence_penalty", "seed"}
"""Fields that a request and Sampling have in common; a client's value goes before the preset's where nothing is pinned."""


@dataclass(frozen=True, slots=True)
class SamplingPolicy:
    """The preset's values. ``pin``: main turns use exactly these; ``honour``: what the client says goes before them."""

    mode: Literal["pin", "honour"]
    temperature: float
    repetition_penalty: float
    max_response_tokens: int

    @classmethod
    def of(cls, rollout: RolloutConfig) -> SamplingPolicy:
        """The policy of a run."""
        return cls(rollout.sampling, rollout.temperature, rollout.repetition_penalty, rollout.max_response_tokens)

    def pins(self, turn_type: TurnType) -> bool:
        """Whether a turn of this type is sampled with the preset's values whatever the client says."""
        return self.mode == "pin" and turn_type is TurnType.MAIN

    def choose(self, request: ChatRequest, turn_type: TurnType, prompt_tokens: int, context_length: int) -> Sampling:
        """The turn's sampling. Main turns are never longer than the preset's cap: they must fit in the trainer.

        A client that names no length gets what is left of the context, up to the cap.

        Raises:
            ApiError: prompt and answer do not fit into ``context_length``.
        """
        answer = self._answer_tokens(request.wanted_tokens, turn_type, context_length - prompt_tokens)
        if prompt_tokens + answer > context_length:
            raise context_overflow(context_length, prompt_tokens, answer)
        stop = tuple(request.stop or ())
        preset: dict[str, Any] = {"temperature": self.temperature, "repetition_penalty": self.repetition_penalty}
        client = {} if self.pins(turn_type) else request.model_dump(include=_CLIENT, exclude_none=True)
        return Sampling(**(preset | client), max_new_tokens=answer, stop=stop)

    def describe(self, sampling: Sampling, turn_type: TurnType) -> str:
        """For the response header x-openclaw-sampling: whose values, and every value that is not neutral."""
        neutral = {field.name: field.default for field in fields(Sampling)}
        values = {name: getattr(sampling, name) for name in neutral if name != "stop"}
        shown = [f"{name}={value}" for name, value in values.items() if value != neutral[name]]
        return "; ".join(["pinned" if self.pins(turn_type) else "client", *shown])

    def _answer_tokens(self, wanted: int | None, turn_type: TurnType, room: int) -> int:
        if wanted is None:
            return max(1, min(self.max_response_tokens, room))
        return min(wanted, self.max_response_tokens) if turn_type is TurnType.MAIN else wanted
