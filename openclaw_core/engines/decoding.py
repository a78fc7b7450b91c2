"""One batch of requests decoded together, token by token, with a key-value cache and left padding."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Int
from torch import Tensor

from openclaw_core.engines.policy import Policy
from openclaw_core.engines.protocol import GenerateRequest
from openclaw_core.engines.sampling import sample, seeded
from openclaw_core.types import FinishReason

_COMPACT_SHARE = 0.25
"""Share of finished rows from which taking them out of the cache (a copy of it, about half a step) pays."""


@dataclass(eq=False, slots=True)
class Row:
    """A request and what has been sampled for it. ``abandoned`` tells whether anyone still waits for it."""

    request: GenerateRequest
    abandoned: Callable[[], bool]
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    generator: torch.Generator = field(init=False)

    def __post_init__(self) -> None:
        self.generator = seeded(self.request.sampling.seed)

    def take(self, token: int, logprob: float) -> None:
        """Append a sampled token and see whether it is the last one."""
        self.token_ids.append(token)
        self.logprobs.append(logprob)
        if token in self.request.stop_token_ids:
            self.finish_reason = FinishReason.STOP
        elif len(self.token_ids) == self.request.sampling.max_new_tokens:
            self.finish_reason = FinishReason.LENGTH

    @property
    def active(self) -> bool:
        """Whether another token is wanted."""
        return self.finish_reason is None and not self.abandoned()


class DecodeBatch:
    """Requests that began together. ``step`` samples one token for each that is still active."""

    def __init__(self, policy: Policy, rows: Sequence[Row]) -> None:
        self._policy = policy
        self._rows = list(rows)
        self._cache = policy.cache()
        self._ids, self._mask = _left_padded([row.request.input_ids for row in rows])
        self._positions = (self._mask.cumsum(-1) - 1).clamp(min=0)

    def step(self) -> list[Row]:
        """Sample one token a row; returns the rows that this token finished."""
        logits = self._policy.next_logits(self._ids, self._mask, self._positions, self._cache)
        samplings = [row.request.sampling for row in self._rows]
        tokens, logprobs = sample(
            logits, samplings, [row.generator for row in self._rows], [row.token_ids for row in self._rows]
        )
        finished: list[Row] = []
        for row, token, logprob in zip(self._rows, tokens.tolist(), logprobs.tolist(), strict=True):
            if row.active:
                row.take(token, logprob)
                if row.finish_reason is not None:
                    finished.append(row)
        self._ids = tokens.unsqueeze(1)
        self._positions = self._positions[:, -1:] + 1
        self._mask = torch.cat([self._mask, self._mask.new_ones(len(self._rows), 1)], dim=1)
        self._drop_finished()
        return finished

    @property
    def active(self) -> bool:
        """Whether any row wants another token."""
        return any(row.active for row in self._rows)

    def _drop_finished(self) -> None:
        kept = [index for index, row in enumerate(self._rows) if row.active]
        if not kept or len(self._rows) - len(kept) < _COMPACT_SHARE * len(self._rows):
            return
        indices = torch.tensor(kept)
        self._rows = [self._rows[index] for index in kept]
        self._ids, self._mask, self._positions = self._ids[indices], self._mask[indices], self._positions[indices]
        self._cache.batch_select_indices(indices)


def _left_padded(prompts: Sequence[Sequence[int]]) -> tuple[Int[Tensor, "b s"], Int[Tensor, "b s"]]:
    """Ids and mask, the prompts aligned at their ends. The padding id does not matter: it is masked."""
    longest = max(len(prompt) for prompt in prompts)
    ids = torch.zeros(len(prompts), longest, dtype=torch.long)
    mask = torch.zeros(len(prompts), longest, dtype=torch.long)
    for row, prompt in enumerate(prompts):
        ids[row, longest - len(prompt) :] = torch.tensor(prompt)
        mask[row, longest - len(prompt) :] = 1
    return ids, mask
