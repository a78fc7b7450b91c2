"""Softmax statistics over a vocabulary of which each rank, and each step of a loop, sees only a part (ALGORITHM 9).

``summarise`` reduces the logits of some columns to a few numbers a row; ``merge`` makes the whole vocabulary's log-sum-exp,
entropy and top-K of them, over the parts of this rank and over the ranks of ``group``. ``group`` None or of size 1 means
that nothing is sharded and no collective runs. What ``merge`` returns is the same on all ranks. Nothing here has a
gradient: ``head`` brings its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
import torch.distributed as dist
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

Group = dist.ProcessGroup
BLOCK = 64
"""Columns of which the maximum is taken before the search for the largest."""


@dataclass(frozen=True, slots=True)
class Part:
    """What some columns of the vocabulary contribute to the softmax of each row."""

    lse: Float[Tensor, " n"]
    """log sum exp of their logits."""
    entropy: Float[Tensor, " n"]
    """Nats, of the softmax over these columns alone."""
    values: Float[Tensor, "n k"]
    """Their largest logits, largest first: at least one, fewer than k if there are fewer columns."""
    ids: Int[Tensor, "n k"]
    """Global ids of ``values``."""


def summarise(z: Float[Tensor, "n v"], k: int, *, start: int, scratch: Float[Tensor, "n v"]) -> Part:
    """The part of the columns whose global ids begin at ``start``; ``z``, tempered logits, and ``scratch`` are overwritten."""
    values, ids = _largest(z, min(max(k, 1), z.shape[-1]))
    peak = values[:, 0]
    p = torch.softmax(z, -1, out=scratch)
    # torch subtracts the maximum in softmax; the largest p is therefore 1 / sum exp(z - peak).
    log_mass = -p.gather(-1, ids[:, :1])[:, 0].log()
    entropy = log_mass - p.mul_(z.sub_(peak[:, None])).sum(-1)
    return Part(peak + log_mass, entropy, values, ids + start)


def merge(
    parts: Sequence[Part], k: int, group: Group | None = None
) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"], Int[Tensor, "n k"]]:
    """Log sum exp, entropy (nats) and the ids of the k largest logits, largest first, of ``parts`` and of all ranks.

    Every rank brings at least one part; k is at most the size of the whole vocabulary.
    """
    lse = torch.stack([part.lse for part in parts], dim=-1)
    peak = reduce_(lse.amax(-1), group, dist.ReduceOp.MAX)
    below = lse - peak[:, None]
    share = below.exp()
    # H = sum_j w_j (H_j - log w_j) with w_j = share_j / mass.
    spread = torch.stack([part.entropy for part in parts], dim=-1) - below
    mass, moment = reduce_(torch.stack([share.sum(-1), (share * spread).sum(-1)]), group)
    # log pi(v) = z_v - peak - log mass: the maximum is part of the normaliser.
    return peak + mass.log(), mass.log() + moment / mass, _topk(parts, k, group)


def localise(ids: Int[Tensor, "..."], *, start: int, rows: int) -> tuple[Int[Tensor, "..."], Tensor]:
    """Index of each global id within a shard of ``rows`` rows (0 where it is elsewhere), and whether it is there."""
    local = ids - start
    inside = (local >= 0) & (local < rows)
    return local.where(inside, 0), inside


def shard_count(group: Group | None) -> int:
    """Over how many ranks the vocabulary is split."""
    return 1 if group is None else dist.get_world_size(group)


def shard_rank(group: Group | None) -> int:
    """Which shard this rank holds."""
    return 0 if group is None else dist.get_rank(group)


def reduce_(x: Tensor, group: Group | None, op: dist.ReduceOp.RedOpType = dist.ReduceOp.SUM) -> Tensor:
    """All-reduce ``x`` in place and return it."""
    if shard_count(group) > 1:
        dist.all_reduce(x, op, group=group)  # pyright: ignore[reportUnknownMemberType]
    return x


def _largest(z: Float[Tensor, "n v"], k: int) -> tuple[Float[Tensor, "n k"], Int[Tensor, "n k"]]:
    """z.topk(k), which on a CPU takes longer than all else that is done to the logits: here only the k blocks of columns
    with the largest maxima are searched."""
    n, v = z.shape
    if v % BLOCK or v < k * BLOCK:
        return cast(tuple[Tensor, Tensor], tuple(z.topk(k, dim=-1)))
    blocks = z.view(n, v // BLOCK, BLOCK)
    best = blocks.amax(-1).topk(k, dim=-1).indices
    values, at = blocks.gather(1, best[:, :, None].expand(-1, -1, BLOCK)).flatten(1).topk(k, dim=-1)
    return values, best.gather(1, at // BLOCK) * BLOCK + at % BLOCK


def _topk(parts: Sequence[Part], k: int, group: Group | None) -> Int[Tensor, "n k"]:
    values, ids = torch.cat([part.values for part in parts], -1), torch.cat([part.ids for part in parts], -1)
    if shard_count(group) > 1:
        values, order = values.topk(min(k, values.shape[-1]), dim=-1)
        # Collectives want equal shapes: a shard of fewer than k rows is filled up with candidates that never win.
        short = (0, k - values.shape[-1])
        values = _gather(functional.pad(values, short, value=-torch.inf), group)
        ids = _gather(functional.pad(ids.gather(-1, order), short), group)
    return ids.gather(-1, values.topk(k, dim=-1).indices)


def _gather(x: Tensor, group: Group | None) -> Tensor:
    parts = [torch.empty_like(x) for _ in range(shard_count(group))]
    dist.all_gather(parts, x.contiguous(), group=group)  # pyright: ignore[reportUnknownMemberType]
    return torch.cat(parts, dim=-1)
