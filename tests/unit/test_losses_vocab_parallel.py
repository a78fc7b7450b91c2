"""Softmax statistics on whole and on sharded logits."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor

from openclaw_core.losses import LossError, head_stats, logits_at, vocab_parallel

N, VOCAB, HIDDEN, TOPK = 9, 27, 5, 4
SHARD_ROWS = 24
"""Two shards of 24 rows for 27 ids: the second holds 3, fewer than top-K."""


def logits(peak: float, dtype: torch.dtype) -> Tensor:
    z = 3 * torch.randn(N, VOCAB, generator=torch.Generator().manual_seed(0))
    return (z - z.amax(-1, keepdim=True) + peak).to(dtype)


def ids() -> Tensor:
    return torch.randint(VOCAB, (N, 5), generator=torch.Generator().manual_seed(1))


def forgetful_log_probs_at(z: Tensor, ids: Tensor) -> Tensor:
    """What the earlier system computed: g - log s, the maximum subtracted inside s only."""
    peak, lse = vocab_parallel.max_and_logsumexp(z)
    return vocab_parallel.gather_logits(z, ids) - (lse - peak)[:, None]


def assert_log_probs(compute: Callable[[Tensor, Tensor], Tensor], peak: float) -> None:
    z = logits(peak, torch.float32)
    torch.testing.assert_close(compute(z, ids()).double(), z.double().log_softmax(-1).gather(1, ids()), rtol=0, atol=1e-5)


@pytest.mark.parametrize("peak", [40.0, -40.0])
def test_log_probs_subtract_the_max(peak: float) -> None:
    assert_log_probs(vocab_parallel.log_probs_at, peak)


@pytest.mark.parametrize("peak", [40.0, -40.0])
def test_a_forgotten_max_is_noticed(peak: float) -> None:
    with pytest.raises(AssertionError, match="Tensor-likes are not close"):
        assert_log_probs(forgetful_log_probs_at, peak)


def test_max_entropy_and_topk_equal_torch() -> None:
    z = logits(40, torch.float64)
    peak, lse = vocab_parallel.max_and_logsumexp(z)
    assert torch.equal(peak, z.amax(-1))
    torch.testing.assert_close(lse, z.logsumexp(-1))
    torch.testing.assert_close(vocab_parallel.entropy(z, lse), torch.distributions.Categorical(logits=z).entropy())
    assert torch.equal(vocab_parallel.topk(z, TOPK), z.topk(TOPK).indices)


def test_gradcheck_of_log_probs() -> None:
    z = logits(2, torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(lambda z: vocab_parallel.log_probs_at(z, ids()), (z,))


def check_shard(rank: int, world: int, rendezvous: str) -> None:
    """One rank: every value and gradient of its shard equals the whole's. Runs in a process of its own."""
    dist.init_process_group("gloo", init_method=rendezvous, rank=rank, world_size=world, timeout=timedelta(minutes=5))
    try:
        group = dist.group.WORLD
        assert group is not None
        for peak in (40.0, -40.0):
            check_primitives(rank * SHARD_ROWS, group, peak)
        check_head(rank * SHARD_ROWS, group)
        with pytest.raises(LossError, match="2 shard"):
            check_head(rank * SHARD_ROWS, group, vocab_size=SHARD_ROWS)
    finally:
        dist.destroy_process_group()


def check_primitives(start: int, group: dist.ProcessGroup, peak_logit: float) -> None:
    whole = logits(peak_logit, torch.float64).requires_grad_()
    shard = whole.detach()[:, start : start + SHARD_ROWS].clone().requires_grad_()
    peak, lse = vocab_parallel.max_and_logsumexp(shard, group=group)
    assert torch.equal(peak, whole.amax(-1))
    torch.testing.assert_close(lse, whole.logsumexp(-1))
    torch.testing.assert_close(
        vocab_parallel.entropy(shard, lse, group=group), torch.distributions.Categorical(logits=whole).entropy()
    )
    for k in (1, TOPK, VOCAB):
        assert torch.equal(vocab_parallel.topk(shard, k, start=start, group=group), whole.topk(k).indices)
    found = vocab_parallel.log_probs_at(shard, ids(), start=start, group=group)
    wanted = whole.log_softmax(-1).gather(1, ids())
    torch.testing.assert_close(found, wanted)
    (grad,) = torch.autograd.grad((found**2).sum(), shard)
    (whole_grad,) = torch.autograd.grad((wanted**2).sum(), whole)
    torch.testing.assert_close(grad, whole_grad[:, start : start + SHARD_ROWS])


def check_head(start: int, group: dist.ProcessGroup, vocab_size: int = VOCAB) -> None:
    generator = torch.Generator().manual_seed(2)
    h = torch.randn(N, HIDDEN, generator=generator, dtype=torch.float64).requires_grad_()
    w = torch.randn(2 * SHARD_ROWS, HIDDEN, generator=generator, dtype=torch.float64).requires_grad_()
    shard = w.detach()[start : start + SHARD_ROWS].clone().requires_grad_()
    tau = torch.tensor([0.7, 1.0, 1.3], dtype=torch.float64).repeat(N // 3)

    def log_probs(weight: Tensor, group: dist.ProcessGroup | None) -> tuple[Tensor, ...]:
        stats = head_stats(h, weight, tau, vocab_size=vocab_size, topk=TOPK, chunk=4, tied=False, group=group)
        logp = logits_at(h, weight, ids(), tau, chunk=4, tied=False, group=group) - stats.lse[:, None]
        return logp, stats.topk_ids, stats.entropy, *torch.autograd.grad((logp**2).sum(), (h, weight))

    *found, grad_shard = log_probs(shard, group)
    *wanted, grad_w = log_probs(w, None)
    torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(grad_shard, grad_w[start : start + SHARD_ROWS])


def test_two_shards_equal_the_whole_forward_and_backward(tmp_path: Path) -> None:
    mp.spawn(check_shard, args=(2, f"file://{tmp_path}/rendezvous"), nprocs=2, join=True)  # pyright: ignore[reportPrivateImportUsage]
