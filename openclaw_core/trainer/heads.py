"""A megatron model's log-probs on response rows: the chunked, vocabulary-parallel head of ``losses`` on the model's own matrix.

Import this module only after ``Accelerator.prepare()``: it imports megatron.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from openclaw_core.losses import HeadStats, head_stats, logits_at
from openclaw_core.losses.vocab_parallel import Group
from openclaw_core.trainer.model import hidden_states, output_weight, unwrap
from openclaw_core.trainer.packing import Packed
from openclaw_core.weights.spec import ModelSpec


@dataclass(frozen=True, slots=True)
class ResponseHead:
    """How the head is computed; the same for policy, teacher and start model."""

    spec: ModelSpec
    chunk: int
    """Rows of which logits exist at a time."""
    group: Group | None
    """Ranks that share the vocabulary; None where one rank holds all of it."""

    def hidden(self, model: torch.nn.Module, packed: Packed) -> Float[Tensor, "n H"]:
        """Final hidden states of the response rows."""
        hidden = hidden_states(model, packed.ids)
        return hidden.reshape(-1, hidden.shape[-1]).index_select(0, packed.rows)

    def stats(self, model: torch.nn.Module, hidden: Tensor, temperature: Float[Tensor, " n"], topk: int) -> HeadStats:
        """Normaliser, top-K and entropy of each row."""
        return head_stats(
            hidden,
            output_weight(unwrap(model)),
            temperature,
            vocab_size=self.spec.vocab_size,
            topk=topk,
            chunk=self.chunk,
            tied=self.spec.tied,
            group=self.group,
        )

    def logits(
        self, model: torch.nn.Module, hidden: Tensor, ids: Int[Tensor, "n k"], temperature: Float[Tensor, " n"]
    ) -> Float[Tensor, "n k"]:
        """Tempered logits at ``ids``; minus the normaliser they are log-probs."""
        weight = output_weight(unwrap(model))
        return logits_at(hidden, weight, ids, temperature, chunk=self.chunk, tied=self.spec.tied, group=self.group)
