"""One server that the suite runs against, and what the model in it must answer according to transformers."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from openclaw_core.engines.protocol import GenerateRequest, Tokens
from openclaw_core.engines.sglang.client import SGLangEngine
from openclaw_core.engines.sglang.publish_types import Deadlines
from openclaw_core.trainer.sender import Sender
from openclaw_core.types import FinishReason, Sampling
from tests.sglang_contract.sending import SentWeights

REAL_URL = os.environ.get("OPENCLAW_SGLANG_URL")
"""A running SGLang server to test instead of the contract server; docs/SGLANG.md says how."""

_DEVICES = {"gloo": "cpu", "nccl": "cuda", "hccl": "npu"}

PROMPT = (1, 40, 77, 120, 9, 300, 12, 5)
DEADLINES = Deadlines(pause_s=20, flush_s=20, join_s=20, session_s=20, bucket_s=20, verify_s=20, resume_s=20)


@dataclass
class World:
    """``reference``: the weights that the server has now. ``tolerance``: of a log-prob, in nats; a real server runs in bf16."""

    url: str
    api_key: str | None
    backend: str
    tolerance: float
    reference: Any
    sender: Sender
    initial: dict[str, Tensor]

    @classmethod
    def of(cls, url: str, directory: Path, *, api_key: str | None, backend: str, tolerance: float) -> World:
        """For the server at ``url`` that was started with the model in ``directory``."""
        reference = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
        initial = {name: value.detach().to(torch.bfloat16) for name, value in reference.named_parameters()}
        return cls(url, api_key, backend, tolerance, reference, Sender("127.0.0.1", _DEVICES[backend], 20.0), initial)

    async def connect(self) -> SGLangEngine:
        """A client of its own."""
        return await SGLangEngine.connect(
            self.url, backend=self.backend, silence_s=60, deadlines=DEADLINES, api_key=self.api_key
        )

    def changed(self, seed: int) -> SentWeights:
        """Other weights than the initial ones, and others for every seed."""
        generator = torch.Generator().manual_seed(seed)
        return SentWeights(
            self.sender,
            {
                name: (value.float() * (1 + 0.5 * torch.randn(value.shape, generator=generator))).to(torch.bfloat16)
                for name, value in self.initial.items()
            },
        )

    async def publish(self, engine: SGLangEngine, weights: SentWeights, version: int) -> None:
        """Pause, load, resume; the reference follows."""
        await engine.pause()
        await engine.load_weights(weights, version, weights.checksum)
        await engine.resume()
        self.follow(weights)

    @torch.no_grad()
    def follow(self, weights: SentWeights) -> None:
        """The server has these now."""
        parameters = dict(self.reference.named_parameters())
        for name, tensor in weights.tensors.items():
            parameters[name].copy_(tensor)

    @torch.inference_mode()
    def logprobs(self, prompt: Sequence[int], answer: Sequence[int], temperature: float = 1.0) -> Tensor:
        """[T, V] at each position of ``answer``."""
        logits = self.reference(input_ids=torch.tensor([[*prompt, *answer]])).logits[0].float()
        return torch.log_softmax(logits[len(prompt) - 1 : -1] / temperature, dim=-1)

    def greedy(self, prompt: Sequence[int], count: int) -> tuple[int, ...]:
        """The most probable answer of ``count`` tokens, end tokens included as any other."""
        ids = list(prompt)
        for _ in range(count):
            ids.append(int(self.logprobs(ids, [0])[0].argmax()))
        return tuple(ids[len(prompt) :])

    def agrees(self, prompt: Sequence[int], ids: Sequence[int], logprobs: Sequence[float], temperature: float) -> bool:
        """Whether log-probs are those of the reference."""
        expected = self.logprobs(prompt, ids, temperature).gather(1, torch.tensor(ids).unsqueeze(1)).squeeze(1)
        return torch.allclose(torch.tensor(logprobs), expected, atol=self.tolerance, rtol=0)


def request(
    prompt: Sequence[int] = PROMPT,
    *,
    temperature: float = 0.0,
    max_new_tokens: int = 12,
    name: str = "request",
    stop: tuple[int, ...] = (),
    **fields: Any,
) -> GenerateRequest:
    """A request, greedy unless told otherwise."""
    sampling = Sampling(temperature=temperature, max_new_tokens=max_new_tokens)
    return GenerateRequest(name, tuple(prompt), sampling, stop, **fields)


@dataclass
class Answer:
    """The pieces of one answer together."""

    ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    versions: tuple[int, ...] = ()
    finish_reason: FinishReason | None = None
    pieces: int = 0

    def add(self, tokens: Tokens) -> None:
        """One more piece."""
        assert self.finish_reason is None, "a piece came after the last"
        self.ids += tokens.token_ids
        self.logprobs += tokens.logprobs
        self.versions += (tokens.weight_version,) * len(tokens.token_ids)
        self.finish_reason = tokens.finish_reason
        self.pieces += 1


async def whole(engine: SGLangEngine, asked: GenerateRequest) -> Answer:
    """The answer to its end."""
    answer = Answer()
    async for tokens in engine.generate(asked):
        answer.add(tokens)
    return answer
