"""What tests of engines share: requests, answers gathered from their stream, weights of a model on the disk."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from openclaw_core.engines.local import LocalEngine
from openclaw_core.engines.protocol import Engine, EngineAborted, GenerateRequest, Tokens
from openclaw_core.types import FinishReason, Sampling
from openclaw_core.weights.checksum import checksum
from tests.models import VOCAB_SIZE

Prompt = tuple[int, ...]
Start = Callable[..., LocalEngine]
LENGTHS = (1, 3, 7, 20, 41, 90)
PROMPTS: list[Prompt] = [tuple((7 * n + 13 * i) % (VOCAB_SIZE - 3) + 3 for i in range(n)) for n in LENGTHS]


def request(
    prompt: Prompt, *, temperature: float = 1.0, new: int = 12, stop: Prompt = (2,), top_logprobs: int = 0, **sampling: Any
) -> GenerateRequest:
    return GenerateRequest("r", prompt, Sampling(temperature, new, **sampling), stop, top_logprobs=top_logprobs)


@contextlib.contextmanager
def local_engines() -> Iterator[Start]:
    """Starts engines and ends them; no keys and values are reused unless a test asks for it."""
    engines: list[LocalEngine] = []

    def start(model: Path, **options: Any) -> LocalEngine:
        engines.append(LocalEngine(model, **({"dtype": "fp32", "threads": 1, "prefix_cache_tokens": 0} | options)))
        return engines[-1]

    yield start
    for engine in engines:
        engine.close()


def named_weights(model: Path, dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    """A model's weights under their names, tied ones once."""
    plain = AutoModelForCausalLM.from_pretrained(model, dtype=dtype)
    return {name: tensor.detach() for name, tensor in plain.named_parameters()}


async def publish(engine: Engine, weights: dict[str, torch.Tensor], version: int, form: Callable[[Any], Any] = dict) -> None:
    """Weights to an engine as a publish hands them over, in the given form."""
    await engine.pause()
    await engine.load_weights(form(weights), version, checksum(weights.items()))
    await engine.resume()


@dataclass(frozen=True)
class Answer:
    """``finish_reason`` is None where the answer was broken off."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    versions: tuple[int, ...]
    """Of each token."""
    finish_reason: FinishReason | None
    pieces: tuple[Tokens, ...]

    @classmethod
    def of(cls, pieces: Iterable[Tokens]) -> Answer:
        pieces = tuple(pieces)
        return cls(
            tuple(token for piece in pieces for token in piece.token_ids),
            tuple(logprob for piece in pieces for logprob in piece.logprobs),
            tuple(piece.weight_version for piece in pieces for _ in piece.token_ids),
            pieces[-1].finish_reason if pieces else None,
            pieces,
        )


async def answer(engine: Engine, request: GenerateRequest) -> Answer:
    """The whole answer."""
    return Answer.of([piece async for piece in engine.generate(request)])


async def until_aborted(engine: Engine, request: GenerateRequest) -> Answer:
    """What came before the engine broke the request off, which it must."""
    pieces: list[Tokens] = []
    try:
        async for piece in engine.generate(request):
            pieces.append(piece)
    except EngineAborted:
        return Answer.of(pieces)
    raise AssertionError(f"{request.request_id} was not broken off; it ended after {len(pieces)} pieces")
