"""The output head on one, two and four shards of the vocabulary, against full logits in float64.

Each number of shards has one test, whose processes run every check below.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor
from torch.nn import functional

from openclaw_core.losses import HeadStats, LossError, head, head_stats, logits_at, vocab_parallel
from tests.unit.main_grad import megatron_parameter

N, TOPK, CHUNK = 9, 4, 4
TOLERANCE = {torch.float64: 1e-11, torch.float32: 1e-5}
VOCABULARIES = {
    1: [(27, 32, 5), (600, 640, 48)],
    # The second shard holds 3 ids, fewer than top-K.
    2: [(27, 24, 5), (32, 16, 8)],
    # The last shard holds 3 ids, and top-10 is more than any shard has; 600 ids padded to 640.
    4: [(27, 8, 5), (600, 160, 48)],
}
"""(ids, rows of each shard, rows of a tile) by number of shards: each shard has several tiles, the last one narrower."""


@dataclass(frozen=True)
class Shard:
    """One rank's place."""

    group: dist.ProcessGroup | None
    vocab: int
    rows: int

    @property
    def start(self) -> int:
        return self.rows * vocab_parallel.shard_rank(self.group)

    @property
    def count(self) -> int:
        return vocab_parallel.shard_count(self.group)

    def of(self, whole: Tensor) -> Tensor:
        """This rank's rows of [vocab, ...], padding rows filled with what must not matter."""
        padded = functional.pad(whole, (0, 0, 0, self.count * self.rows - self.vocab), value=77.0)
        return padded[self.start : self.start + self.rows].clone()

    def log_probs(self, h: Tensor, weight: Tensor, tau: Tensor, ids: Tensor, k: int = TOPK, tied: bool = False) -> Tensor:
        """[N, k]"""
        return self.logits(h, weight, ids, tau, tied) - self.stats(h, weight, tau, k, tied).lse[:, None]

    def stats(self, h: Tensor, weight: Tensor, tau: Tensor, k: int = TOPK, tied: bool = False) -> HeadStats:
        return head_stats(h, weight, tau, vocab_size=self.vocab, topk=k, chunk=CHUNK, tied=tied, group=self.group)

    def logits(self, h: Tensor, weight: Tensor, ids: Tensor, tau: Tensor, tied: bool = False) -> Tensor:
        return logits_at(h, weight, ids, tau, chunk=CHUNK, tied=tied, group=self.group)


def border_ids(shard: Shard) -> Tensor:
    """The first and the last id of every shard, in every row in another order, and some ids at random."""
    firsts = torch.arange(0, shard.vocab, shard.rows)
    borders = torch.cat([firsts, (firsts + shard.rows - 1).clamp(max=shard.vocab - 1)])
    others = torch.randint(shard.vocab, (N, 3), generator=torch.Generator().manual_seed(1))
    return torch.cat([torch.stack([borders.roll(i) for i in range(N)]), others], 1)


def logits(vocab: int, peak: float, dtype: torch.dtype) -> Tensor:
    z = 3 * torch.randn(N, vocab, generator=torch.Generator().manual_seed(0))
    return (z - z.amax(-1, keepdim=True) + peak).to(dtype)


def one_hot(z: Tensor, shard: Shard) -> tuple[Tensor, Tensor, Tensor]:
    """Hidden states, this rank's weight and temperatures that make the head's logits exactly ``z``."""
    return torch.eye(N, dtype=z.dtype).requires_grad_(), shard.of(z.T.contiguous()).requires_grad_(), torch.ones(N)


def check_statistics(shard: Shard) -> None:
    for dtype, tolerance in TOLERANCE.items():
        for peak in (40.0, -40.0):
            z = logits(shard.vocab, peak, dtype)
            exact = z.double()
            for k in (0, 1, TOPK, 10, shard.vocab):
                found = shard.stats(*one_hot(z, shard), k=k)
                close = partial(torch.testing.assert_close, rtol=0, atol=tolerance, check_dtype=False)
                close(found.lse, exact.logsumexp(-1))
                close(found.entropy, torch.distributions.Categorical(logits=exact).entropy())
                assert torch.equal(found.topk_ids, exact.topk(k).indices)


def check_log_probs(shard: Shard, peak: float, dtype: torch.dtype, compute: Callable[..., Tensor]) -> None:
    """Values, and gradients of the logits (through the weight, h being one-hot) and of h."""
    z, ids = logits(shard.vocab, peak, dtype), border_ids(shard)
    h, weight, tau = one_hot(z, shard)
    found = compute(h, weight, tau, ids)
    exact_h, exact_z = h.detach().double().requires_grad_(), z.double().clone().requires_grad_()
    wanted = (exact_h @ exact_z).log_softmax(-1).gather(1, ids)
    close = partial(torch.testing.assert_close, rtol=0, atol=TOLERANCE[dtype], check_dtype=False)
    close(found, wanted)
    upstream = torch.randn(wanted.shape, generator=torch.Generator().manual_seed(3))
    grad_h, grad_weight = torch.autograd.grad((found * upstream).sum(), (h, weight))
    wanted_h, wanted_z = torch.autograd.grad((wanted * upstream).sum(), (exact_h, exact_z))
    valid = max(0, min(shard.rows, shard.vocab - shard.start))
    close(grad_weight[:valid], wanted_z.T[shard.start : shard.start + valid])
    assert not grad_weight[valid:].any(), "padding rows got a gradient"
    # h's gradient is a sum of logits times upstream gradients: relative to their size.
    scale = float(z.abs().max())
    close(summed(grad_h, forward=shard.group) / scale, wanted_h / scale)
    if shard.count > 1:
        with pytest.raises(AssertionError, match="not close"):
            close(grad_h / scale, wanted_h / scale)


def check_the_maximum_is_needed(shard: Shard) -> None:
    """What the earlier system computed, g - log s with the maximum subtracted inside s only, is noticed."""

    def forgetful(h: Tensor, weight: Tensor, tau: Tensor, ids: Tensor) -> Tensor:
        peak = logits(shard.vocab, 40, torch.float32).amax(-1)
        return shard.log_probs(h, weight, tau, ids) + peak[:, None]

    with pytest.raises(AssertionError, match="not close"):
        check_log_probs(shard, 40, torch.float32, forgetful)


def check_dense_and_main_grad(shard: Shard, tied: bool) -> None:
    """Ordinary hidden states, two temperatures, two micro-batches: ``main_grad`` holds the gradient once, also where the
    embedding uses the weight too."""
    generator = torch.Generator().manual_seed(2)
    h, w = (torch.randn(rows, 6, generator=generator, dtype=torch.float64).requires_grad_() for rows in (N, shard.vocab))
    tau = torch.tensor([0.7, 1.0, 1.3], dtype=torch.float64).repeat(N // 3)
    ids = border_ids(shard)

    z = (h + functional.embedding(ids[:, 0], w) if tied else h) @ w.T / tau[:, None]
    wanted = torch.autograd.grad((z.log_softmax(-1).gather(1, ids) ** 2).sum(), (h, w))

    parameter = megatron_parameter(shard.of(w.detach()), torch.float64)
    local, inside = vocab_parallel.localise(ids[:, 0], start=shard.start, rows=shard.rows)
    for _ in range(2):
        embedded = summed(functional.embedding(local, parameter) * inside[:, None], forward=shard.group)
        x = summed(h + embedded if tied else h, backward=shard.group)
        (shard.log_probs(x, parameter, tau, ids, tied=tied) ** 2).sum().backward()
    close = partial(torch.testing.assert_close, rtol=0, atol=1e-10)
    assert h.grad is not None
    close(h.grad / 2, wanted[0])
    valid = (torch.arange(shard.rows) + shard.start < shard.vocab)[:, None]
    close(parameter.main_grad / 2, shard.of(wanted[1]).where(valid, 0))
    assert parameter.hook_calls == [True, True] and parameter.grad_added_to_main_grad is not tied


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, forward, backward):
        ctx.group = backward
        return vocab_parallel.reduce_(x.clone(), forward)

    @staticmethod
    def backward(ctx, grad):
        return vocab_parallel.reduce_(grad.clone(), ctx.group), None, None


def summed(x: Tensor, forward: dist.ProcessGroup | None = None, backward: dist.ProcessGroup | None = None) -> Tensor:
    """``x`` summed over ``forward``, as a vocabulary-parallel embedding does, or its gradient summed over ``backward``, as
    Megatron does where the head begins."""
    return _Sum.apply(x, forward, backward)  # pyright: ignore[reportReturnType]


def check_no_rows(shard: Shard) -> None:
    """A rank group without response rows runs the same collectives."""
    h, weight, tau = (
        torch.zeros(0, N, requires_grad=True),
        shard.of(torch.randn(shard.vocab, N)).requires_grad_(),
        torch.ones(0),
    )
    logp = shard.log_probs(h, weight, tau, torch.zeros(0, 3, dtype=torch.int64))
    assert logp.shape == (0, 3) and shard.stats(h, weight, tau).topk_ids.shape == (0, TOPK)
    logp.sum().backward()
    assert weight.grad is not None and not weight.grad.any()


def check_a_shard_of_padding_is_refused(shard: Shard) -> None:
    """On every rank, also on those that hold ids: none waits for another."""
    empty = Shard(shard.group, shard.rows * (shard.count - 1), shard.rows)
    with pytest.raises(LossError, match=rf"vocab_size={empty.vocab} with {shard.count} shard\(s\) of {shard.rows} rows"):
        empty.stats(torch.zeros(N, 3), torch.zeros(shard.rows, 3), torch.ones(N))


def check_all(group: dist.ProcessGroup | None) -> None:
    for vocab, rows, tile in VOCABULARIES[vocab_parallel.shard_count(group)]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(head, "TILE", tile)
            patch.setattr(vocab_parallel, "BLOCK", 4)
            check_shard(Shard(group, vocab, rows))


def check_shard(shard: Shard) -> None:
    check_statistics(shard)
    for dtype in TOLERANCE:
        for peak in (40.0, -40.0):
            check_log_probs(shard, peak, dtype, shard.log_probs)
    check_the_maximum_is_needed(shard)
    for tied in (False, True):
        check_dense_and_main_grad(shard, tied)
    check_no_rows(shard)
    check_a_shard_of_padding_is_refused(shard)


def run_rank(rank: int, world: int, rendezvous: str) -> None:
    """One process."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=rendezvous, rank=rank, world_size=world, timeout=timedelta(minutes=2))
    try:
        check_all(dist.group.WORLD)
    finally:
        dist.destroy_process_group()


def test_one_shard_equals_full_logits() -> None:
    check_all(None)


@pytest.mark.parametrize("world", [2, 4])
def test_shards_equal_full_logits(world: int, tmp_path: Path) -> None:
    mp.spawn(run_rank, args=(world, f"file://{tmp_path}/rendezvous"), nprocs=world, join=True)  # pyright: ignore[reportPrivateImportUsage]
