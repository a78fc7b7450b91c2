"""The output head on response rows only, in chunks, recomputed in backward (ALGORITHM 12).

log pi(v) = ``logits_at`` - ``head_stats(...).lse``. Neither keeps logits: at most [chunk, V] exist at any time, and what is
saved for backward is [n, H]. Half-precision hidden states and weights are upcast, so that logits have fp32 accuracy.

The weight is the whole output matrix or, with ``group``, this rank's rows of it; hidden states are then replicated over the
group, and their gradient comes back already summed over it. Rows at and beyond ``vocab_size`` are Megatron's padding and
take no part. ``tied`` says that the embedding uses the same weight, which decides how the gradient reaches Megatron's
``main_grad`` (see WeightGrad).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from openclaw_core.losses import vocab_parallel
from openclaw_core.losses.errors import LossError
from openclaw_core.losses.vocab_parallel import Group


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
    x = _tempered(h, weight, temperature, chunk)
    stats = cast(Any, _HeadStats).apply(x, weight, shard, topk, chunk, tied)
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
    x = _tempered(h, weight, temperature, chunk)
    return cast(Any, _LogitsAt).apply(x, weight, ids, shard, chunk, tied)


class WeightGrad:
    """The output matrix's gradient in one backward call, and how it is handed over.

    Without ``main_grad`` it is returned to autograd. With it (Megatron's DDP) it is added there in place, in fp32, and
    Megatron's hook, which adds the autograd gradient unless ``grad_added_to_main_grad`` is set, must not add it again:

    * untied: the flag is set, and a gradient without storage is returned so that the hook runs;
    * tied: the embedding's gradient still has to come through the hook, so the flag stays off and nothing is returned.
    """

    def __init__(self, weight: Tensor, dtype: torch.dtype, *, tied: bool) -> None:
        self._weight = weight
        self._tied = tied
        self._main = main = cast(Tensor | None, getattr(weight, "main_grad", None))
        self.buffer: Tensor = torch.zeros_like(weight, dtype=dtype) if main is None or main.dtype != dtype else main
        """[rows, hidden]; add the gradient here."""

    def hand_over(self) -> Tensor | None:
        """What backward returns for the weight."""
        if self._main is None:
            return self.buffer.to(self._weight.dtype)
        if self.buffer is not self._main:
            self._main.add_(self.buffer)
        if self._tied:
            return None
        self._weight.grad_added_to_main_grad = True  # pyright: ignore[reportAttributeAccessIssue]
        return self._weight.new_zeros(()).expand(self._weight.shape)


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
    def forward(ctx: Any, x: Tensor, weight: Tensor, shard: _Shard, topk: int, chunk: int, tied: bool) -> tuple[Tensor, ...]:
        n, group = x.shape[0], shard.group
        w = weight[: shard.rows].to(x.dtype)
        lse, entropy = x.new_empty(n), x.new_empty(n)
        ids = torch.empty(n, topk, dtype=torch.int64, device=x.device)
        for rows in _chunks(n, chunk):
            z = x[rows] @ w.T
            _, lse[rows] = vocab_parallel.max_and_logsumexp(z, group=group)
            entropy[rows] = vocab_parallel.entropy(z, lse[rows], group=group)
            if topk > 0:
                ids[rows] = vocab_parallel.topk(z, topk, start=shard.start, group=group)
        ctx.save_for_backward(x, weight, lse)
        ctx.mark_non_differentiable(ids, entropy)
        ctx.shard, ctx.chunk, ctx.tied = shard, chunk, tied
        return lse, ids, entropy

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        x, weight, lse = cast(tuple[Tensor, ...], ctx.saved_tensors)
        shard = cast(_Shard, ctx.shard)
        grad_lse = cast(Tensor, grads[0])
        w = weight[: shard.rows].to(x.dtype)
        grad_x = torch.empty_like(x) if ctx.needs_input_grad[0] else None
        grad_w = WeightGrad(weight, x.dtype, tied=ctx.tied) if ctx.needs_input_grad[1] else None
        for rows in _chunks(x.shape[0], ctx.chunk):
            grad_z = (x[rows] @ w.T).sub_(lse[rows, None]).exp_().mul_(grad_lse[rows, None])
            if grad_x is not None:
                torch.mm(grad_z, w, out=grad_x[rows])
            if grad_w is not None:
                grad_w.buffer[: shard.rows].addmm_(grad_z.T, x[rows])
        return _finish(grad_x, grad_w, shard)


class _LogitsAt(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, ids: Tensor, shard: _Shard, chunk: int, tied: bool) -> Tensor:
        local, inside = vocab_parallel.localise(ids, start=shard.start, rows=shard.rows)
        z = x.new_empty(ids.shape)
        for rows in _chunks(x.shape[0], chunk):
            z[rows] = torch.einsum("nh,nkh->nk", x[rows], weight[local[rows]].to(x.dtype))
        ctx.save_for_backward(x, weight, local, inside)
        ctx.shard, ctx.chunk, ctx.tied = shard, chunk, tied
        return vocab_parallel.sum_over_shards(z.where(inside, 0), shard.group)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        x, weight, local, inside = cast(tuple[Tensor, ...], ctx.saved_tensors)
        grad_z = cast(Tensor, grads[0]).where(inside, 0)
        grad_x = torch.empty_like(x) if ctx.needs_input_grad[0] else None
        grad_w = WeightGrad(weight, x.dtype, tied=ctx.tied) if ctx.needs_input_grad[1] else None
        for rows in _chunks(x.shape[0], ctx.chunk):
            if grad_x is not None:
                grad_x[rows] = torch.einsum("nk,nkh->nh", grad_z[rows], weight[local[rows]].to(x.dtype))
            if grad_w is not None:
                outer = grad_z[rows, :, None] * x[rows, None, :]
                grad_w.buffer.index_add_(0, local[rows].flatten(), outer.flatten(0, 1))
        return _finish(grad_x, grad_w, ctx.shard)


def _tempered(h: Tensor, weight: Tensor, temperature: Tensor, chunk: int) -> Tensor:
    """h / temperature in the dtype of the logits: dividing [n, H] spares a pass over [n, V]."""
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
    dtype = torch.promote_types(torch.promote_types(h.dtype, weight.dtype), torch.float32)
    return h.to(dtype) / temperature.to(dtype)[:, None]


def _chunks(n: int, size: int) -> Iterator[slice]:
    return (slice(begin, begin + size) for begin in range(0, n, size))


def _finish(grad_x: Tensor | None, grad_w: WeightGrad | None, shard: _Shard) -> tuple[Tensor | None, ...]:
    """The result of a backward: each shard holds only its part of the gradient of the replicated hidden states."""
    whole_x = None if grad_x is None else vocab_parallel.reduce_(grad_x, shard.group)
    return whole_x, None if grad_w is None else grad_w.hand_over(), None, None, None, None
