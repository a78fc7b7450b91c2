"""Samples → right-padded micro-batches, and the flat rows [n] of response positions on which the loss works.

The hidden state at position p predicts token p + 1, so the rows of a sample with prompt length P and T response tokens
are the positions P-1 … P+T-2. Rows are laid out sample by sample, so ragged responses need no padding in the loss.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from openclaw_core.types import Sample

PAD_ID = 0
"""Right padding is never seen by a causal model's response rows, so any valid id will do."""


@dataclass(frozen=True, slots=True)
class Packed:
    """Sequences prompt + response, padded to one length, with their response rows."""

    ids: Int[Tensor, "b s"]
    rows: Int[Tensor, " n"]
    """Indices into the hidden states [s, b, H] seen as [s*b, H]."""
    lengths: tuple[int, ...]
    """Response rows per sequence; they sum to n."""
    tokens: int
    """Positions that are not padding."""


def pack(sequences: Sequence[tuple[Sequence[int], Sequence[int]]]) -> Packed:
    """Pack (prompt ids, response ids) pairs."""
    longest = max(len(prompt) + len(response) for prompt, response in sequences)
    ids = torch.full((len(sequences), longest), PAD_ID, dtype=torch.long)
    rows: list[Tensor] = []
    for b, (prompt, response) in enumerate(sequences):
        ids[b, : len(prompt) + len(response)] = torch.tensor([*prompt, *response])
        positions = torch.arange(len(prompt) - 1, len(prompt) + len(response) - 1)
        rows.append(positions * len(sequences) + b)
    tokens = sum(len(prompt) + len(response) for prompt, response in sequences)
    return Packed(ids, torch.cat(rows), tuple(len(response) for _, response in sequences), tokens)


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """A few samples, packed, with everything that the loss needs per row except the model's own log-probs."""

    samples: tuple[Sample, ...]
    packed: Packed
    targets: Int[Tensor, " n"]
    rollout_logp: Float[Tensor, " n"]
    mask: Bool[Tensor, " n"]
    sample_index: Int[Tensor, " n"]
    temperature: Float[Tensor, " n"]

    def per_row(self, values: Sequence[float] | Sequence[bool]) -> Tensor:
        """One value per sample → one per row."""
        return torch.tensor(values)[self.sample_index]


def micro_batches(samples: Sequence[Sample], size: int) -> list[MicroBatch]:
    """Split a batch into micro-batches of at most ``size`` samples of similar length, longest last."""
    ordered = sorted(samples, key=lambda s: len(s.prompt_ids) + len(s.response_ids))
    return [_micro_batch(tuple(ordered[i : i + size])) for i in range(0, len(ordered), size)]


def padding_share(batches: Sequence[MicroBatch]) -> float:
    """Share of the positions of some micro-batches that are padding."""
    return 1 - sum(b.packed.tokens for b in batches) / sum(b.packed.ids.numel() for b in batches)


def _micro_batch(samples: tuple[Sample, ...]) -> MicroBatch:
    packed = pack([(s.prompt_ids, s.response_ids) for s in samples])
    sample_index = torch.repeat_interleave(torch.arange(len(samples)), torch.tensor(packed.lengths))
    return MicroBatch(
        samples=samples,
        packed=packed,
        targets=torch.tensor([token for s in samples for token in s.response_ids]),
        rollout_logp=torch.tensor([value for s in samples for value in s.rollout_logprobs], dtype=torch.float32),
        mask=torch.tensor([bool(value) for s in samples for value in s.loss_mask]),
        sample_index=sample_index,
        temperature=torch.tensor([s.temperature for s in samples], dtype=torch.float32)[sample_index],
    )
