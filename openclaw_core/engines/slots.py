"""Keys and values of the sequences being decoded: one row a sequence, the token at position p in column p.

No row is padded, so a sequence enters and leaves without moving the others, and each forward pass writes only its own tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

KeysValues = Float[Tensor, "layers 2 heads n d"]
"""Of one sequence's first n tokens."""

_COLUMN_STEP = 64
"""Columns are added in multiples of it, and by half at least, so that growing (a copy) is rare."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What the keys and values of one token look like."""

    layers: int
    heads: int
    head_dim: int
    dtype: torch.dtype


class Slots:
    """The memory of all rows, grown when needed. Nothing in it is ever read before it was written, but for zeros."""

    def __init__(self, shape: Shape) -> None:
        self._shape = shape
        self.release()

    def release(self) -> None:
        """Give all memory back."""
        self._memory = self._zeros(0, 0)

    def reserve(self, rows: int, columns: int) -> None:
        """Make room for so many; what is there stays."""
        have_rows, have_columns = self._memory.shape[2], self._memory.shape[4]
        if rows <= have_rows and columns <= have_columns:
            return
        if rows > have_rows:
            rows = max(rows, have_rows + have_rows // 2)
        if columns > have_columns:
            columns = -(-max(columns, have_columns + have_columns // 2) // _COLUMN_STEP) * _COLUMN_STEP
        # Zeros and not whatever the memory holds: masked columns are multiplied by 0, and 0 x NaN is NaN.
        memory = self._zeros(max(rows, have_rows), max(columns, have_columns))
        memory[:, :, :have_rows, :, :have_columns] = self._memory
        self._memory = memory

    def write(self, row: int, prefix: KeysValues) -> None:
        """Begin ``row`` with the tokens of ``prefix``."""
        self._memory[:, :, row, :, : prefix.shape[3]] = prefix

    def read(self, row: int, length: int) -> KeysValues:
        """A copy of the first ``length`` tokens of ``row``."""
        return self._memory[:, :, row, :, :length].clone()

    def move(self, source: int, target: int, length: int) -> None:
        """Let ``target`` hold the first ``length`` tokens of ``source``."""
        self._memory[:, :, target, :, :length] = self._memory[:, :, source, :, :length]

    def window(self, first: int, starts: Sequence[int], length: int) -> Window:
        """For a forward pass of ``length`` tokens on each of len(``starts``) rows, the first of which is ``first``.

        ``starts``: how many tokens of each row came before. The room must be reserved.
        """
        rows = slice(first, first + len(starts))
        return Window(self._memory[:, :, rows, :, : max(starts) + length], starts, length)

    def _zeros(self, rows: int, columns: int) -> Tensor:
        shape = self._shape
        return torch.zeros(shape.layers, 2, rows, shape.heads, columns, shape.head_dim, dtype=shape.dtype)


class Window:
    """What one forward pass reads and writes of the slots; to transformers it is the cache.

    ``positions`` [b, s] of the tokens fed; a query sees the columns up to its own position, so what a shorter row has behind
    its end is not seen. ``mask`` says that, [b, 1, s, columns]; it is None where all rows begin and transformers' own causal
    attention does the same faster. (Not so for one token a row: without a mask it takes a path that is five times slower.)
    """

    def __init__(self, memory: Tensor, starts: Sequence[int], length: int) -> None:
        self._memory, self._starts, self._length = memory, starts, length
        self._even = min(starts) == max(starts)
        self.positions: Int[Tensor, "b s"] = torch.tensor(starts).unsqueeze(1) + torch.arange(length)
        self.mask: Float[Tensor, "b 1 s columns"] | None = None
        if length == 1 or max(starts) > 0:
            hidden = torch.arange(memory.shape[4]) > self.positions.unsqueeze(-1)
            # Additive and in the keys' dtype: a boolean one would be converted in every layer.
            self.mask = torch.zeros(hidden.shape, dtype=memory.dtype).masked_fill_(hidden, -torch.inf).unsqueeze(1)

    def update(self, keys: Tensor, values: Tensor, layer: int, *_: object, **__: object) -> tuple[Tensor, Tensor]:
        """Keep a layer's keys and values [b, heads, s, d] of the tokens fed; gives those of all columns."""
        both = self._memory[layer]
        for new, kept in zip((keys, values), both, strict=True):
            if self._even:
                kept[:, :, self._starts[0] :] = new
            elif self._length == 1:
                kept[torch.arange(len(kept)), :, self.positions[:, 0]] = new[:, :, 0]
            else:
                for row, start in enumerate(self._starts):
                    kept[row, :, start : start + self._length] = new[row]
        return both[0], both[1]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Columns before this pass, as seen where there is no ``mask``."""
        return 0

    def get_query_offset(self, layer_idx: int = 0) -> int:
        """The same."""
        return 0

    def get_mask_sizes(self, query_length: int, layer_idx: int = 0) -> tuple[int, int]:
        """Columns, and the first one."""
        return self._memory.shape[4], 0
