"""Softmax statistics over a vocabulary that may be sharded over ranks (ALGORITHM 9).

``z`` are logits already divided by the temperature, without padding rows: [n, v], where v is the whole vocabulary or
this rank's shard of it, beginning at global id ``start``. ``group`` None or of size 1 means that nothing is sharded and no
collective runs. Every result is the same on all ranks of the group. Gradients flow to the local shard only: each rank
computes the same loss, so the gradient of a reduced value is already whole on each of them.
"""

from __future__ import annotations

from typing import Any, cast

import torch
import torch.distributed as dist
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

Group = dist.ProcessGroup


def shard_count(group: Group | None) -> int:
    """Over how many ranks the vocabulary is split."""
    return 1 if group is None else dist.get_world_size(group)


def shard_rank(group: Group | None) -> int:
    """Which shard this rank holds."""
    return 0 if group is None else dist.get_rank(group)


def reduce_(x: Tensor, group: Group | None, op: dist.ReduceOp.RedOpType = dist.ReduceOp.SUM) -> Tensor:
    """All-reduce ``x`` in place, outside autograd, and return it."""
    if shard_count(group) > 1:
        dist.all_reduce(x, op, group=group)  # pyright: ignore[reportUnknownMemberType]
    return x


def sum_over_shards(x: Tensor, group: Group | None) -> Tensor:
    """All-reduce SUM whose gradient is the identity."""
    if shard_count(group) == 1:
        return x
    return cast(Any, _SumOverShards).apply(x, group)


def max_and_logsumexp(
    z: Float[Tensor, "n v"], *, group: Group | None = None
) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"]]:
    """Row maxima (detached) and log sum exp, the maximum subtracted before exp. log pi(v) = z_v - logsumexp."""
    peak = reduce_(z.detach().amax(-1), group, dist.ReduceOp.MAX)
    mass = sum_over_shards((z - peak[:, None]).exp_().sum(-1), group)
    return peak, peak + mass.log()


@torch.no_grad()
def entropy(z: Float[Tensor, "n v"], logsumexp: Float[Tensor, " n"], *, group: Group | None = None) -> Float[Tensor, " n"]:
    """H = logsumexp - sum p z, in nats; a metric, without a gradient."""
    p = (z - logsumexp[:, None]).exp_()
    return logsumexp.detach() - reduce_(p.mul_(z).sum(-1), group)


@torch.no_grad()
def topk(z: Float[Tensor, "n v"], k: int, *, start: int = 0, group: Group | None = None) -> Int[Tensor, "n k"]:
    """Global ids of the k largest logits of each row, largest first; k is at most the size of the whole vocabulary."""
    if shard_count(group) == 1:
        return z.topk(k, dim=-1).indices
    values, ids = z.topk(min(k, z.shape[-1]), dim=-1)
    # Collectives want equal shapes: a shard of fewer than k rows is filled up with candidates that never win.
    short = (0, k - values.shape[-1])
    values = _gather_shards(functional.pad(values, short, value=-torch.inf), group)
    ids = _gather_shards(functional.pad(ids + start, short), group)
    return ids.gather(-1, values.topk(k, dim=-1).indices)


def gather_logits(
    z: Float[Tensor, "n v"], ids: Int[Tensor, "n k"], *, start: int = 0, group: Group | None = None
) -> Float[Tensor, "n k"]:
    """z at global ``ids``: off-shard ids give 0 locally, and the ranks' sum is the logit."""
    local, inside = localise(ids, start=start, rows=z.shape[-1])
    return sum_over_shards(z.gather(-1, local).where(inside, 0), group)


def log_probs_at(
    z: Float[Tensor, "n v"], ids: Int[Tensor, "n k"], *, start: int = 0, group: Group | None = None
) -> Float[Tensor, "n k"]:
    """log pi(ids) over the full vocabulary."""
    _, logsumexp = max_and_logsumexp(z, group=group)
    return gather_logits(z, ids, start=start, group=group) - logsumexp[:, None]


def localise(ids: Int[Tensor, "..."], *, start: int, rows: int) -> tuple[Int[Tensor, "..."], Tensor]:
    """Index of each global id within a shard of ``rows`` rows (0 where it is elsewhere), and whether it is there."""
    local = ids - start
    inside = (local >= 0) & (local < rows)
    return local.where(inside, 0), inside


def _gather_shards(x: Tensor, group: Group | None) -> Tensor:
    parts = [torch.empty_like(x) for _ in range(shard_count(group))]
    dist.all_gather(parts, x.contiguous(), group=group)  # pyright: ignore[reportUnknownMemberType]
    return torch.cat(parts, dim=-1)


class _SumOverShards(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group) -> Tensor:
        return reduce_(x.clone(), group)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Any, None]:
        return grads[0], None
