"""Samples → right-padded micro-batches, and the flat rows [n] of response positions on which the loss works.

The hidden state at position p predicts token p + 1, so the rows of a sample with prompt length P and T response tokens
are the positions P-1 … P+T-2. Rows are laid out sample by sample, so ragged responses need no padding in the loss.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

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

    def to(self, device: str) -> Packed:
        """The same with its tensors on ``device``."""
        return replace(self, ids=self.ids.to(device), rows=self.rows.to(device))


def pack(sequences: Sequence[tuple[Sequence[int], Sequence[int]]], multiple: int = 1) -> Packed:
    """Pack (prompt ids, response ids) pairs; the common length is a multiple of ``multiple`` (sequence parallelism)."""
    longest = max(len(prompt) + len(response) for prompt, response in sequences)
    ids = torch.full((len(sequences), -(-longest // multiple) * multiple), PAD_ID, dtype=torch.long)
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

    @classmethod
    def of(cls, samples: Sequence[Sample], multiple: int = 1) -> MicroBatch:
        """Pack some samples, in this order."""
        packed = pack([(s.prompt_ids, s.response_ids) for s in samples], multiple)
        sample_index = torch.repeat_interleave(torch.arange(len(samples)), torch.tensor(packed.lengths))
        return cls(
            samples=tuple(samples),
            packed=packed,
            targets=torch.tensor([token for s in samples for token in s.response_ids], dtype=torch.long),
            rollout_logp=torch.tensor([value for s in samples for value in s.rollout_logprobs], dtype=torch.float32),
            mask=torch.tensor([bool(value) for s in samples for value in s.loss_mask], dtype=torch.bool),
            sample_index=sample_index,
            temperature=torch.tensor([s.temperature for s in samples], dtype=torch.float32)[sample_index],
        )

    def to(self, device: str) -> MicroBatch:
        """The same with its tensors on ``device``."""
        tensors = ("targets", "rollout_logp", "mask", "sample_index", "temperature")
        moved = {name: getattr(self, name).to(device) for name in tensors}
        return replace(self, packed=self.packed.to(device), **moved)

    def per_row(self, values: Sequence[float] | Sequence[bool]) -> Tensor:
        """One value per sample → one per row."""
        return torch.tensor(values, device=self.sample_index.device)[self.sample_index]


def micro_batches(samples: Sequence[Sample], max_tokens: int, ranks: int = 1) -> list[list[tuple[Sample, ...]]]:
    """The micro-batches of each data-parallel rank, as many for every rank.

    Samples of similar length come together, so that padding is small; none has more than ``max_tokens`` positions,
    padding included, but for a longer sample, which is alone in its own. With fewer samples than ranks some micro-batches
    are empty. The result depends on the samples alone, so ranks that have all of them agree without a word.
    """
    groups: list[tuple[Sample, ...]] = []
    for sample in sorted(samples, key=_length):
        if groups and (len(groups[-1]) + 1) * _length(sample) <= max_tokens:
            groups[-1] += (sample,)
        else:
            groups.append((sample,))
    while len(groups) % ranks and (index := _largest(groups)) is not None:
        half = len(groups[index]) // 2
        groups[index : index + 1] = [groups[index][:half], groups[index][half:]]
    groups += [()] * (-len(groups) % ranks)
    return [groups[rank::ranks] for rank in range(ranks)]


def chunks_by_tokens(lengths: Sequence[int], max_tokens: int) -> list[range]:
    """Split sequences of these ``lengths``, kept in order, into runs of at most ``max_tokens`` positions when padded."""
    chunks: list[range] = []
    begin = longest = 0
    for i, length in enumerate(lengths):
        longest = max(longest, length)
        if i > begin and (i + 1 - begin) * longest > max_tokens:
            chunks.append(range(begin, i))
            begin, longest = i, length
    return [*chunks, range(begin, len(lengths))] if lengths else []


def _length(sample: Sample) -> int:
    return len(sample.prompt_ids) + len(sample.response_ids)


def _largest(groups: Sequence[Sequence[Sample]]) -> int | None:
    """The micro-batch of most positions among those that can be split."""
    sizes = {i: len(group) * _length(group[-1]) for i, group in enumerate(groups) if len(group) > 1}
    return max(sizes, key=lambda i: sizes[i], default=None)
