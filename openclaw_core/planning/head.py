"""Bytes of the output head on response rows (losses/head.py): chunks of rows by tiles of the vocabulary."""

from __future__ import annotations

from dataclasses import dataclass

from openclaw_core.planning.weights import DTYPE_BYTES, FP32
from openclaw_core.weights.spec import Dtype, ModelSpec

TILE = 8192
"""losses.head.TILE, which cannot be imported here without torch; a test compares them."""
_ID = 8


@dataclass(frozen=True, slots=True)
class Head:
    """The head's work on ``rows`` response rows, ``chunk`` at a time, for the largest ``topk`` logits and the target."""

    spec: ModelSpec
    dtype: Dtype
    rows: int
    chunk: int
    topk: int
    tensor_parallel: int = 1

    def forward(self) -> int:
        """Rows of hidden states, the same tempered in fp32, two buffers of logits, a tile, and what is noted of each tile."""
        notes = self.rows * -(-self._vocabulary // TILE) * (2 * FP32 + max(1, self.topk) * (FP32 + _ID))
        return self._hidden + self._tempered + max(2 * self._logits + self._upcast_tile + notes, self._rows_of_ids)

    def backward(self) -> int:
        """Rows of hidden states, the same tempered in fp32, and their gradient: by the chosen logits, and by the normaliser in
        fp32 and, in bf16, rounded. Beside them what a tile needs, or the rows of the matrix that the chosen ids pick.
        """
        gradients = self._hidden + self._tempered + (self._hidden if self.dtype == "bf16" else 0)
        tile = self._logits + self._rounded_logits + self._upcast_tile + self._product_tile
        return self._hidden + self._tempered + gradients + max(tile, self._rows_of_ids) + self._hook_gradient

    def teacher_hidden(self, hints: int) -> int:
        """Hidden states of the hinted passes of a micro-batch, which live until its hint is chosen."""
        return hints * self._hidden

    @property
    def _vocabulary(self) -> int:
        return self.spec.padded_vocab_size // self.tensor_parallel

    @property
    def _hidden(self) -> int:
        return self.rows * self.spec.hidden * DTYPE_BYTES[self.dtype]

    @property
    def _tempered(self) -> int:
        return self.rows * self.spec.hidden * FP32

    @property
    def _logits(self) -> int:
        return min(self.chunk, self.rows) * min(TILE, self._vocabulary) * FP32

    @property
    def _tile_elements(self) -> int:
        return min(TILE, self._vocabulary) * self.spec.hidden

    @property
    def _upcast_tile(self) -> int:
        return self._tile_elements * FP32 if self.dtype == "bf16" else 0

    @property
    def _rounded_logits(self) -> int:
        """The gradient of a chunk's logits as a factor in bf16, as it is and transposed."""
        return self._logits if self.dtype == "bf16" else 0

    @property
    def _product_tile(self) -> int:
        """A tile's gradient in bf16 and in fp32, on its way to main_grad; in fp32 the product is added at once."""
        return self._tile_elements * (DTYPE_BYTES[self.dtype] + FP32) if self.dtype == "bf16" else 0

    @property
    def _rows_of_ids(self) -> int:
        """For every row of a chunk, the rows of the matrix at target and top-K: as they are, upcast, and their gradient."""
        elements = min(self.chunk, self.rows) * (1 + self.topk) * self.spec.hidden
        return elements * (DTYPE_BYTES[self.dtype] + 2 * FP32)

    @property
    def _hook_gradient(self) -> int:
        """An untied matrix returns an unfilled gradient, so that the hook of data parallelism runs."""
        return 0 if self.spec.tied else self._vocabulary * self.spec.hidden * DTYPE_BYTES[self.dtype]
