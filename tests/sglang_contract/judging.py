"""A contract server's model that judges: it gives the verdict that a script has for the prompt, token by token."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from openclaw_core.gateway.rendering import ChatRenderer


class JudgesLikeThis:
    """In place of the tiny model: its next token is that of what ``script`` makes of the prompt, then the end token."""

    def __init__(self, renderer: ChatRenderer, script: Callable[[str], str]) -> None:
        self._renderer, self._script = renderer, script
        self.eos = set(renderer.stop_token_ids)
        self.prompts: list[str] = []
        self._opening = renderer.tokenizer.encode("<|im_start|>assistant\n", add_special_tokens=False)

    def logits(self, ids: Any, last: int = 1) -> Tensor:
        ids, size = list(ids), len(self._opening)
        openings = [n for n in range(len(ids) - size + 1) if ids[n : n + size] == self._opening]
        at = openings[-1] + size if openings else len(ids)  # a health check asks nothing
        prompt = self._renderer.tokenizer.decode(ids[:at])
        answer = [*self._renderer.tokenizer.encode(self._script(prompt), add_special_tokens=False), *self.eos]
        if len(ids) == at:
            self.prompts.append(prompt)
        logits = torch.full((last, len(self._renderer.tokenizer)), -1e4)
        logits[-1, answer[len(ids) - at]] = 0.0
        return logits


def like_a_judge(prompt: str) -> str:
    """A complaint, whatever was said, and what would have been better."""
    if "hindsight" in prompt:
        return "It sounds cold. \\boxed{1} [HINT_START]Be warm and kind to the pupil.[HINT_END]"
    return "A complaint: \\boxed{-1}"
