"""Bytes that a forward and a backward pass take on one rank, counted from the tensors that megatron's local layers keep.

What a layer keeps was listed with torch.autograd.graph.saved_tensors_hooks and is compared with it in the tests. Two things
differ by device: ``flash`` attention (NPU) keeps a few numbers per position and head, the local attention (CPU) keeps the
probabilities of every pair of positions; and what a caching allocator or malloc adds is counted elsewhere, if at all.
"""

from __future__ import annotations

from dataclasses import dataclass

from openclaw_core.planning.weights import DTYPE_BYTES, FP32
from openclaw_core.weights.spec import Dtype, ModelSpec

_SOFTMAX_STATISTICS = 2 * 8 * FP32
"""Maximum and sum of a row of scores, as torch_npu's fused attention keeps them: [batch, heads, positions, 8] in fp32."""


@dataclass(frozen=True, slots=True)
class Pass:
    """The layers' work on one micro-batch: ``positions`` in all, in sequences of ``length``."""

    spec: ModelSpec
    dtype: Dtype
    positions: int
    length: int
    tensor_parallel: int = 1
    sequence_parallel: bool = False
    flash: bool = False
    recompute: bool = False

    def kept(self) -> int:
        """When the forward pass ends: everything that backward will need, or only every layer's input."""
        if self.recompute:
            angles = self.length * self.spec.head_dim * FP32  # of the rotary embedding, an input of every layer
            return self.spec.layers * self._stream + angles + self._final_norm + self._scores_buffer
        return self.spec.layers * self.kept_by_layer() + self._final_norm + self._scores_buffer

    def kept_by_layer(self) -> int:
        """Of one layer that is not recomputed."""
        return (
            2 * self._norm
            + 2 * self._stream
            + self._qk_norms
            + self._views
            + self._rotary
            + self._attention
            + self._feed_forward
        )

    def backward_of_layer(self) -> int:
        """In backward, on top of ``kept``: a layer's gradients and, where it is recomputed, all that it had not kept.

        Gradients are largest either in the feed-forward part (of gate, up and their product, two of which live at once) or
        in the attention, when what the feed-forward part had kept is already free.
        """
        attention = self._attention_gradients - self._feed_forward
        gradients = max(2 * self._ffn, attention) + self._stream + self._gathered
        return gradients + (self.kept_by_layer() if self.recompute else 0)

    def forward_only(self) -> int:
        """The most that a pass without a graph needs at one time, its result included.

        In the feed-forward part: gate | up, silu of the gate, up, and their product; in the local attention the scores, in
        the model's dtype twice and in fp32 twice.
        """
        scores = 0 if self.flash else self._pairs * 2 * (DTYPE_BYTES[self.dtype] + FP32)
        attention = self._queries + 2 * self._expanded_keys + scores
        stream = 2 * self._stream + self._gathered + self._norm
        return stream + max(self._feed_forward, attention)

    def embedding_gradient(self) -> int:
        """At the end of backward, when all else is free: the embedding's gradient, and in bf16 its fp32 copy on the way to
        main_grad."""
        elements = self.spec.padded_vocab_size // self.tensor_parallel * self.spec.hidden
        copies = DTYPE_BYTES[self.dtype] + (FP32 if self.dtype == "bf16" else 0)
        return elements * copies + self._stream + self._scores_buffer

    @property
    def hidden(self) -> int:
        """The hidden states that the head takes, or their gradient: whole on every rank."""
        return self.positions * self.spec.hidden * DTYPE_BYTES[self.dtype]

    @property
    def _own_positions(self) -> int:
        """Of norms and residuals, which sequence parallelism splits."""
        return self.positions // self.tensor_parallel if self.sequence_parallel else self.positions

    @property
    def _stream(self) -> int:
        """One tensor of hidden states between the parallel parts: a layer's input, a norm's output."""
        return self._own_positions * self.spec.hidden * DTYPE_BYTES[self.dtype]

    @property
    def _gathered(self) -> int:
        """Sequence parallelism gathers all positions in front of a parallel part, in a buffer that stays."""
        return self.hidden if self.sequence_parallel else 0

    @property
    def _norm(self) -> int:
        """RMSNorm: its input in fp32, its result before the weight, and a factor per position."""
        return self._own_positions * (2 * self.spec.hidden + 1) * FP32

    @property
    def _final_norm(self) -> int:
        return self._norm + self.hidden

    @property
    def _heads(self) -> int:
        return self.spec.heads // self.tensor_parallel

    @property
    def _kv_heads(self) -> int:
        return self.spec.kv_heads // self.tensor_parallel

    @property
    def _queries(self) -> int:
        return self.positions * self._heads * self.spec.head_dim * DTYPE_BYTES[self.dtype]

    @property
    def _keys(self) -> int:
        return self.positions * self._kv_heads * self.spec.head_dim * DTYPE_BYTES[self.dtype]

    @property
    def _expanded_keys(self) -> int:
        """The local attention repeats keys and values for the query heads that share them."""
        return self._keys if self.flash else self._queries

    @property
    def _qk_norms(self) -> int:
        """Norms of queries and keys."""
        heads = self._heads + self._kv_heads if self.spec.qk_norm else 0
        return self.positions * heads * (2 * self.spec.head_dim + 1) * FP32

    @property
    def _views(self) -> int:
        """What stays of the projection's whole output, queries | keys | values, because a part of it, a view, is kept.

        With shared keys and values, which are copied when they are repeated, that part can only be the keys that their norm
        keeps in fp32 (in bf16 it keeps an upcast copy); the queries of several groups had to be copied out. Else it is the
        values.
        """
        norm_keeps_views = self.spec.qk_norm and self.dtype == "fp32"
        if self.spec.heads != self.spec.kv_heads:
            copied = self._queries if self._kv_heads > 1 else 0
            return self._keys + copied if norm_keeps_views else 0
        return 0 if norm_keeps_views else self._queries + self._keys

    @property
    def _rotary(self) -> int:
        """Cosines and sines, made for queries and for keys in every layer."""
        return 4 * self.length * self.spec.head_dim * DTYPE_BYTES[self.dtype]

    @property
    def _pairs(self) -> int:
        """Pairs of positions, of all heads and sequences."""
        return self.positions * self.length * self._heads

    @property
    def _attention(self) -> int:
        """Queries, keys, values, the context that the projection takes, and what makes the probabilities again."""
        probabilities = self.positions * self._heads * _SOFTMAX_STATISTICS
        if not self.flash:  # softmax works in fp32; in bf16 its result is kept in both
            probabilities = self._pairs * (FP32 + (DTYPE_BYTES[self.dtype] if self.dtype == "bf16" else 0))
        return 2 * self._queries + 2 * self._expanded_keys + probabilities

    @property
    def _attention_gradients(self) -> int:
        """Of queries, keys and values; in the local attention of probabilities and scores too, both in fp32."""
        return self._queries + 2 * self._expanded_keys + (0 if self.flash else 2 * self._pairs * FP32)

    @property
    def _scores_buffer(self) -> int:
        """Megatron's local attention keeps a buffer of the size of the scores for the whole run."""
        return 0 if self.flash else self._pairs * DTYPE_BYTES[self.dtype]

    @property
    def _ffn(self) -> int:
        return self.positions * self.spec.ffn // self.tensor_parallel * DTYPE_BYTES[self.dtype]

    @property
    def _feed_forward(self) -> int:
        """Gate | up as one tensor, silu of the gate, up once more (megatron adds an offset of 0), and their product."""
        return 5 * self._ffn
