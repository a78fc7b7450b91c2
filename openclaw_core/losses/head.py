"""The output head on response rows only, in tiles, recomputed in backward (ALGORITHM 12).

log pi(v) = ``logits_at`` - ``head_stats(...).lse``. Neither keeps logits: two buffers of [chunk, TILE] are all that exists at
any time, and what is saved for backward is [n, H]. The loop over the vocabulary is the outer one, so that each row of the
weight is read, upcast and given its gradient once a pass.

Half-precision hidden states and weights are upcast, so that logits have fp32 accuracy. In backward bf16 ones are not: the
gradient of the logits is rounded to bf16, as in any bf16 output layer, while sums over tiles and chunks stay in fp32.

The weight is the whole output matrix or, with ``group``, this rank's rows of it; hidden states are then the same on every
rank of the group. The gradient of the hidden states is this rank's part: whoever replicated them sums it over the group.
Rows at and beyond ``vocab_size`` are Megatron's padding and take no part. ``tied`` says that the embedding uses the same
weight, which decides how the gradient reaches Megatron's ``main_grad`` (see WeightGrad).
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from openclaw_core.losses import vocab_parallel
from openclaw_core.losses.errors import LossError
from openclaw_core.losses.vocab_parallel import Group, Part

TILE = 8192
"""Rows of the output matrix that are worked on at a time."""


@dataclass(frozen=True, slots=True)
class HeadStats:
    """What the head says of each row; only ``lse`` carries a gradient."""

    lse: Float[Tensor, " n"]
    """log sum exp of the tempered logits."""
    topk_ids: Int[Tensor, "n k"]
    """Global ids, most likely first."""
    entropy: Float[Tensor, " n"]
    """Nats."""


def head_stats(
    h: Float[Tensor, "n hidden"],
    weight: Float[Tensor, "rows hidden"],
    temperature: Float[Tensor, " n"],
    *,
    vocab_size: int,
    topk: int,
    chunk: int,
    tied: bool,
    group: Group | None = None,
) -> HeadStats:
    """Normaliser, top-K and entropy of softmax(h W^T / temperature), row by row.

    ``topk`` 0 gives ids of shape [n, 0]. Raises LossError for shapes that do not fit, a temperature that is not positive,
    or a ``vocab_size`` that leaves a shard without a row.
    """
    shard = _Shard.of(weight, vocab_size, group)
    if not 0 <= topk <= vocab_size:
        raise LossError(f"topk={topk}: allowed is 0 to vocab_size={vocab_size}")
    _check(h, weight, temperature, chunk)
    stats = cast(Any, _HeadStats).apply(h, weight, temperature, shard, topk, chunk, tied)
    return HeadStats(*cast(tuple[Tensor, Tensor, Tensor], stats))


def logits_at(
    h: Float[Tensor, "n hidden"],
    weight: Float[Tensor, "rows hidden"],
    ids: Int[Tensor, "n k"],
    temperature: Float[Tensor, " n"],
    *,
    chunk: int,
    tied: bool,
    group: Group | None = None,
) -> Float[Tensor, "n k"]:
    """h . W[ids] / temperature. Raises LossError for shapes that do not fit or an id outside the weight."""
    shard = _Shard.of(weight, weight.shape[0] * vocab_parallel.shard_count(group), group)
    if ids.ndim != 2 or ids.shape[0] != h.shape[0]:
        raise LossError(f"ids have shape {tuple(ids.shape)}; expected [{h.shape[0]}, k], one row per hidden state")
    if ids.numel() and bool(((ids < 0) | (ids >= shard.vocab_size)).any()):
        raise LossError(f"ids reach from {int(ids.min())} to {int(ids.max())}; allowed is 0 to {shard.vocab_size - 1}")
    _check(h, weight, temperature, chunk)
    return cast(Any, _LogitsAt).apply(h, weight, temperature, ids, shard, chunk, tied)


class WeightGrad:
    """The output matrix's gradient in one backward call, and how it is handed over.

    Without ``main_grad`` it is returned to autograd. With it (Megatron's DDP) it is added there in place, in fp32, and
    Megatron's hook, which adds the autograd gradient unless ``grad_added_to_main_grad`` is set, must not add it again:

    * untied: the flag is set, and an unfilled gradient is returned so that the hook runs, as Megatron's own layers do. Only
      the normaliser, which is part of every log-prob, returns it: autograd would fill a second one in by adding the two;
    * tied: the embedding's gradient still has to come through the hook, so the flag stays off and nothing is returned.
    """

    def __init__(self, weight: Tensor, dtype: torch.dtype, *, tied: bool) -> None:
        self._weight = weight
        self._tied = tied
        self._main = main = cast(Tensor | None, getattr(weight, "main_grad", None))
        self.buffer: Tensor = torch.zeros_like(weight, dtype=dtype) if main is None or main.dtype != dtype else main
        """[rows, hidden]; add the gradient here."""

    def hand_over(self, *, run_hook: bool) -> Tensor | None:
        """What backward returns for the weight."""
        if self._main is None:
            return self.buffer.to(self._weight.dtype)
        if self.buffer is not self._main:
            self._main.add_(self.buffer)
        if self._tied:
            return None
        self._weight.grad_added_to_main_grad = True  # pyright: ignore[reportAttributeAccessIssue]
        return torch.empty_like(self._weight) if run_hook else None


@dataclass(frozen=True, slots=True)
class _Shard:
    """Which rows of the vocabulary this rank's weight holds."""

    start: int
    rows: int
    """Without padding."""
    vocab_size: int
    group: Group | None

    @classmethod
    def of(cls, weight: Tensor, vocab_size: int, group: Group | None) -> _Shard:
        held, shards = weight.shape[0], vocab_parallel.shard_count(group)
        # The bounds are those of the last shard on every rank: all ranks raise, or none waits for another in vain.
        if not held * (shards - 1) < vocab_size <= held * shards:
            raise LossError(
                f"vocab_size={vocab_size} with {shards} shard(s) of {held} rows: allowed is {held * (shards - 1) + 1} to "
                f"{held * shards}; pass the model's vocab_size and its output matrix"
            )
        start = held * vocab_parallel.shard_rank(group)
        return cls(start=start, rows=min(held, vocab_size - start), vocab_size=vocab_size, group=group)


class _HeadStats(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, h: Tensor, weight: Tensor, temperature: Tensor, shard: _Shard, topk: int, chunk: int, tied: bool
    ) -> tuple[Tensor, ...]:
        logits = _Logits(h, weight, temperature, shard, chunk)
        parts: list[list[Part]] = [[] for _ in logits.chunks]
        scratch = logits.buffer()
        with _fast_products(h, weight):
            for tile, w in logits.tiles():
                for rows, found in zip(logits.chunks, parts, strict=True):
                    z = logits.of(rows, w)
                    start = shard.start + tile.start
                    found.append(vocab_parallel.summarise(z, topk, start=start, scratch=_view(scratch, z.shape)))
        merged = [vocab_parallel.merge(found, topk, shard.group) for found in parts]
        lse, entropy, ids = (torch.cat(pieces) for pieces in zip(*merged, strict=True))
        ctx.save_for_backward(h, weight, temperature, lse)
        ctx.mark_non_differentiable(ids, entropy)
        ctx.shard, ctx.chunk, ctx.tied = shard, chunk, tied
        return lse, ids, entropy

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        h, weight, temperature, lse = cast(tuple[Tensor, ...], ctx.saved_tensors)
        logits = _Logits(h, weight, temperature, ctx.shard, ctx.chunk)
        grad_lse = cast(Tensor, grads[0])[:, None] / temperature.to(lse.dtype)[:, None]
        grad_h = torch.zeros_like(h, dtype=lse.dtype) if ctx.needs_input_grad[0] else None
        grad_w = WeightGrad(weight, lse.dtype, tied=ctx.tied) if ctx.needs_input_grad[1] else None
        # fp16 has too small a range for grad_z.
        rounded = h.dtype == weight.dtype == torch.bfloat16
        with _fast_products(h, weight):
            for tile, w in logits.tiles():
                factor = weight[tile] if rounded else w
                for rows in logits.chunks:
                    grad_z = logits.of(rows, w).sub_(lse[rows, None]).exp_().mul_(grad_lse[rows]).to(factor.dtype)
                    if grad_h is not None:
                        _add_product(grad_h[rows], grad_z, factor)
                    if grad_w is not None:
                        _add_product(grad_w.buffer[tile], grad_z.T, h[rows].to(factor.dtype))
        return _returned(h, grad_h, grad_w, run_hook=True)


class _LogitsAt(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, h: Tensor, weight: Tensor, temperature: Tensor, ids: Tensor, shard: _Shard, chunk: int, tied: bool
    ) -> Tensor:
        dtype = _dtype(h, weight)
        local, inside = vocab_parallel.localise(ids, start=shard.start, rows=shard.rows)
        z = h.new_empty(ids.shape, dtype=dtype)
        for rows in _chunks(h.shape[0], chunk):
            z[rows] = torch.einsum("nh,nkh->nk", h[rows].to(dtype), weight[local[rows]].to(dtype))
        z = z.div_(temperature.to(dtype)[:, None]).where(inside, 0)
        ctx.save_for_backward(h, weight, temperature, local, inside)
        ctx.chunk, ctx.tied = chunk, tied
        return vocab_parallel.reduce_(z, shard.group)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        h, weight, temperature, local, inside = cast(tuple[Tensor, ...], ctx.saved_tensors)
        grad_z = (cast(Tensor, grads[0]) / temperature.to(grads[0].dtype)[:, None]).where(inside, 0)
        grad_h = torch.empty_like(h, dtype=grad_z.dtype) if ctx.needs_input_grad[0] else None
        grad_w = WeightGrad(weight, grad_z.dtype, tied=ctx.tied) if ctx.needs_input_grad[1] else None
        for rows in _chunks(h.shape[0], ctx.chunk):
            if grad_h is not None:
                grad_h[rows] = torch.einsum("nk,nkh->nh", grad_z[rows], weight[local[rows]].to(grad_z.dtype))
            if grad_w is not None:
                outer = grad_z[rows, :, None] * h[rows, None, :]
                grad_w.buffer.index_add_(0, local[rows].flatten(), outer.flatten(0, 1))
        return _returned(h, grad_h, grad_w, run_hook=False)


class _Logits:
    """The logits of one pass over the head, [chunk, TILE] at a time, in a buffer that the next ones overwrite."""

    def __init__(self, h: Tensor, weight: Tensor, temperature: Tensor, shard: _Shard, chunk: int) -> None:
        dtype = _dtype(h, weight)
        self._x, self._temperature = h.to(dtype), temperature.to(dtype)[:, None]
        self._weight, self._rows, self._chunk = weight, shard.rows, chunk
        self._z = self.buffer()
        self.chunks = _chunks(h.shape[0], chunk)

    def buffer(self) -> Tensor:
        """Room for the logits of a chunk and a tile."""
        return self._x.new_empty(min(self._chunk, self._x.shape[0]) * min(TILE, self._rows))

    def tiles(self) -> Iterator[tuple[slice, Tensor]]:
        """Each tile's place in the weight, and its rows, upcast into a buffer that the next tile overwrites."""
        x, weight = self._x, self._weight
        upcast = None if weight.dtype == x.dtype else x.new_empty(min(TILE, self._rows), x.shape[1])
        for tile in _chunks(self._rows, TILE):
            w = weight[tile]
            yield tile, w if upcast is None else upcast[: w.shape[0]].copy_(w)

    def of(self, rows: slice, w: Tensor) -> Tensor:
        """h[rows] w^T / temperature."""
        x = self._x[rows]
        z = torch.mm(x, w.T, out=_view(self._z, (x.shape[0], w.shape[0])))
        return z.div_(self._temperature[rows])


@contextmanager
def _fast_products(h: Tensor, weight: Tensor) -> Generator[None]:
    """On a CPU, let oneDNN multiply what was bf16, with its licence to round factors to bf16 before adding up in fp32.

    The logits' factors are bf16 numbers, upcast, so nothing is lost where it does (on CPUs with AMX); where it does not, its
    fp32 product is still faster than that of torch's default library (105 against 85 GFLOP/s a core on an AMD EPYC). This is
    why the temperature divides the logits: h / temperature is no bf16 number.
    """
    if h.device.type != "cpu" or not h.dtype == weight.dtype == torch.bfloat16:
        yield
        return
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def _check(h: Tensor, weight: Tensor, temperature: Tensor, chunk: int) -> None:
    if h.ndim != 2 or weight.ndim != 2 or h.shape[1] != weight.shape[1] or temperature.shape != h.shape[:1]:
        raise LossError(
            f"h {tuple(h.shape)}, weight {tuple(weight.shape)}, temperature {tuple(temperature.shape)}; expected "
            "[n, hidden], [rows, hidden] and [n]"
        )
    if chunk < 1:
        raise LossError(f"chunk={chunk}: allowed is 1 or more rows")
    if not bool((temperature > 0).all()):
        raise LossError(
            f"a temperature of {float(temperature.min())}; greedy turns are not trainable and must be dropped before"
        )


def _dtype(h: Tensor, weight: Tensor) -> torch.dtype:
    """Of the logits."""
    return torch.promote_types(torch.promote_types(h.dtype, weight.dtype), torch.float32)


def _add_product(out: Tensor, a: Tensor, b: Tensor) -> None:
    """out += a b, the product rounded to the type of its factors if that is not the type of ``out``."""
    if a.dtype == out.dtype:
        out.addmm_(a, b)
    else:
        out.add_(a @ b)


def _chunks(n: int, size: int) -> list[slice]:
    """At least one, so that a rank without rows enters the collectives too."""
    return [slice(begin, min(begin + size, n)) for begin in range(0, max(n, 1), size)]


def _view(buffer: Tensor, shape: tuple[int, ...]) -> Tensor:
    """The beginning of a flat buffer, as a contiguous [rows, columns]."""
    return buffer[: shape[0] * shape[1]].view(shape)


def _returned(h: Tensor, grad_h: Tensor | None, grad_w: WeightGrad | None, *, run_hook: bool) -> tuple[Tensor | None, ...]:
    """What a backward returns for h, weight and five arguments without a gradient."""
    whole_w = None if grad_w is None else grad_w.hand_over(run_hook=run_hook)
    return None if grad_h is None else grad_h.to(h.dtype), whole_w, None, None, None, None, None
