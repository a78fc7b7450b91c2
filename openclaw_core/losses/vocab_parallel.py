"""Softmax statistics over a vocabulary of which each rank, and each step of a loop, sees only a part (ALGORITHM 9).

``summarise`` reduces the logits of some columns to a few numbers a row; ``merge`` makes the whole vocabulary's log-sum-exp,
entropy and top-K of them, over the parts of this rank and over the ranks of ``group``. ``group`` None or of size 1 means
that nothing is sharded and no collective runs. What ``merge`` returns is the same on all ranks. Nothing here has a
gradient: ``head`` brings its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

Group = dist.ProcessGroup


@dataclass(frozen=True, slots=True)
class Part:
    """What some columns of the vocabulary contribute to the softmax of each row."""

    lse: Float[Tensor, " n"]
    """log sum exp of their logits."""
    mean: Float[Tensor, " n"]
    """Their expected logit, sum p z, with p normalised within the part."""
    values: Float[Tensor, "n k"]
    """Their largest logits, largest first: at least one, fewer than k if there are fewer columns."""
    ids: Int[Tensor, "n k"]
    """Global ids of ``values``."""


def summarise(z: Float[Tensor, "n v"], k: int, *, start: int, scratch: Float[Tensor, "n v"]) -> Part:
    """The part of the columns whose global ids begin at ``start``, given their tempered logits; overwrites ``scratch``."""
    values, ids = z.topk(min(max(k, 1), z.shape[-1]), dim=-1)
    p = torch.softmax(z, -1, out=scratch)
    # torch subtracts the maximum in softmax; that of the largest logit is 1 / sum exp(z - maximum).
    lse = values[:, 0] - p.gather(-1, ids[:, :1])[:, 0].log()
    return Part(lse, p.mul_(z).sum(-1), values, ids + start)


def merge(
    parts: Sequence[Part], k: int, group: Group | None = None
) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"], Int[Tensor, "n k"]]:
    """Log sum exp, entropy (nats) and the ids of the k largest logits, largest first, of ``parts`` and of all ranks.

    Every rank brings at least one part; k is at most the size of the whole vocabulary.
    """
    lse = torch.stack([part.lse for part in parts], dim=-1)
    mean = torch.stack([part.mean for part in parts], dim=-1)
    peak = reduce_(lse.amax(-1), group, dist.ReduceOp.MAX)
    share = (lse - peak[:, None]).exp()
    mass, moment = reduce_(torch.stack([share.sum(-1), (share * mean).sum(-1)]), group)
    # log pi(v) = z_v - peak - log mass: the maximum is part of the normaliser.
    whole = peak + mass.log()
    return whole, whole - moment / mass, _topk(parts, k, group)


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
