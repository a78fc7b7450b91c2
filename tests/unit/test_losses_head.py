"""The chunked output head against full logits."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from openclaw_core.losses import LossError, head, head_stats, logits_at, vocab_parallel
from tests.unit.main_grad import megatron_parameter

VOCAB, PADDED, HIDDEN, N = 41, 48, 8, 10
CHUNKS = [1, 3, 10, 64]


@pytest.fixture(autouse=True, params=[12, 64], ids=["tiles", "one_tile"])
def tile(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several tiles, the last one narrower, and one for the whole vocabulary. Top-4 is searched for in blocks of 2 where
    a tile is a multiple of that."""
    monkeypatch.setattr(head, "TILE", request.param)
    monkeypatch.setattr(vocab_parallel, "BLOCK", 2)


def leaves(dtype: torch.dtype = torch.float64, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """h [N, HIDDEN], W [PADDED, HIDDEN] and two temperatures mixed over the rows."""
    generator = torch.Generator().manual_seed(seed)
    normal = partial(torch.randn, generator=generator, dtype=dtype)
    temperature = torch.tensor([0.7, 1.3], dtype=torch.float64).repeat(N // 2)
    return normal(N, HIDDEN).requires_grad_(), normal(PADDED, HIDDEN).requires_grad_(), temperature


def full_logits(h: Tensor, weight: Tensor, temperature: Tensor) -> Tensor:
    return h @ weight[:VOCAB].T / temperature[:, None]


def some_ids(k: int = 3) -> Tensor:
    """Ids with repetitions within a row and over rows."""
    ids = torch.randint(VOCAB, (N, k), generator=torch.Generator().manual_seed(1))
    ids[:, 0] = ids[0, 0]
    return ids


stats = partial(head_stats, vocab_size=VOCAB, tied=False)


@pytest.mark.parametrize("chunk", CHUNKS)
def test_stats_equal_those_of_full_logits(chunk: int) -> None:
    h, w, temperature = leaves()
    found = stats(h, w, temperature, topk=4, chunk=chunk)
    z = full_logits(h, w, temperature)
    torch.testing.assert_close(found.lse, z.logsumexp(-1))
    torch.testing.assert_close(found.entropy, torch.distributions.Categorical(logits=z).entropy())
    assert torch.equal(found.topk_ids, z.topk(4).indices)
    assert not found.entropy.requires_grad and not found.topk_ids.requires_grad


@pytest.mark.parametrize("chunk", CHUNKS)
def test_gradients_equal_those_of_full_logits(chunk: int) -> None:
    h, w, temperature = leaves()
    ids = some_ids()
    upstream = torch.randn(N, 3, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    logp = (
        logits_at(h, w, ids, temperature, chunk=chunk, tied=False) - stats(h, w, temperature, topk=0, chunk=chunk).lse[:, None]
    )
    expected = full_logits(h, w, temperature).log_softmax(-1).gather(1, ids)
    torch.testing.assert_close(logp, expected)
    found, wanted = (torch.autograd.grad((x * upstream).sum(), (h, w)) for x in (logp, expected))
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)
    assert not found[1][VOCAB:].any()


def test_padding_rows_take_no_part() -> None:
    h, w, temperature = leaves()
    before = stats(h, w, temperature, topk=4, chunk=3)
    with torch.no_grad():
        w[VOCAB:] = 100 * torch.sign(h[0])
    after = stats(h, w, temperature, topk=4, chunk=3)
    assert torch.equal(before.lse, after.lse)
    assert torch.equal(before.entropy, after.entropy)
    assert torch.equal(before.topk_ids, after.topk_ids)
    assert torch.isfinite(torch.autograd.grad(after.lse.sum(), (h, w))[1]).all()


def test_gradcheck() -> None:
    h, w, temperature = leaves()
    temperature, ids = temperature[:4], some_ids()[:4] % 7
    inputs = (h.detach()[:4, :3].requires_grad_(), w.detach()[:9, :3].requires_grad_())
    small = partial(head_stats, vocab_size=7, topk=2, chunk=3, tied=False)
    assert torch.autograd.gradcheck(lambda h, w: small(h, w, temperature).lse, inputs)
    assert torch.autograd.gradcheck(lambda h, w: logits_at(h, w, ids, temperature, chunk=3, tied=False), inputs)


@pytest.mark.parametrize("frozen", ["h", "weight"])
def test_what_needs_no_gradient_gets_none(frozen: str) -> None:
    h, w, temperature = leaves()
    (h if frozen == "h" else w).requires_grad_(False)
    logp = (
        logits_at(h, w, some_ids(), temperature, chunk=3, tied=False) - stats(h, w, temperature, topk=0, chunk=3).lse[:, None]
    )
    logp.sum().backward()
    assert (h.grad is None) == (frozen == "h") and (w.grad is None) == (frozen == "weight")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_gives_logits_of_fp32_accuracy_and_gradients_in_its_own_type(dtype: torch.dtype) -> None:
    h, w, temperature = leaves(dtype)
    ids = some_ids()
    found = stats(h, w, temperature, topk=4, chunk=3)
    logp = logits_at(h, w, ids, temperature, chunk=3, tied=False) - found.lse[:, None]
    exact = full_logits(h.detach().double(), w.detach().double(), temperature).log_softmax(-1).gather(1, ids)
    assert logp.dtype == torch.float32
    torch.testing.assert_close(logp.double(), exact, rtol=0, atol=5e-6)
    rounded = (h @ w[:VOCAB].T).double() / temperature[:, None]
    assert (rounded.log_softmax(-1).gather(1, ids) - exact).abs().max() > 1e-3, "rounded logits would have done as well"
    logp.sum().backward()
    assert h.grad is not None and h.grad.dtype == dtype and w.grad is not None and w.grad.dtype == dtype


def wide(dtype: torch.dtype, n: int = 64, vocab: int = 640, hidden: int = 256) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """h, W, temperature and ids of a size at which the CPU's library for bf16 products is used."""
    generator = torch.Generator().manual_seed(5)
    h, w = (torch.randn(rows, hidden, generator=generator) for rows in (n, vocab))
    temperature = torch.tensor([0.7, 1.3]).repeat(n // 2)
    ids = torch.randint(vocab, (n, 4), generator=generator)
    return (2 * h).to(dtype), (w * hidden**-0.5).to(dtype), temperature, ids


def relative_errors(h: Tensor, w: Tensor, temperature: Tensor, ids: Tensor) -> tuple[float, float, float]:
    """Against float64 on the same inputs: worst log-prob, and gradients of h and of W (in main_grad) by norm."""
    h, weight = h.clone().requires_grad_(), megatron_parameter(w, torch.float32)
    options = {"chunk": 48, "tied": False}
    lse = head_stats(h, weight, temperature, vocab_size=w.shape[0], topk=4, **options).lse
    logp = logits_at(h, weight, ids, temperature, **options) - lse[:, None]
    logp.sum().backward()
    assert h.grad is not None
    exact_h, exact_w = h.detach().double().requires_grad_(), w.double().requires_grad_()
    exact = (exact_h @ exact_w.T / temperature.double()[:, None]).log_softmax(-1).gather(1, ids)
    exact.sum().backward()
    assert exact_h.grad is not None and exact_w.grad is not None
    return (
        float((logp.detach() - exact.detach()).abs().max()),
        float((h.grad - exact_h.grad).norm() / exact_h.grad.norm()),
        float((weight.main_grad - exact_w.grad).norm() / exact_w.grad.norm()),
    )


def test_bf16_gives_logits_of_fp32_accuracy_and_gradients_within_bf16s_rounding() -> None:
    """On the way to either gradient there are two roundings to 8 bits: of the logits' gradient, and of the product or of h's
    own gradient. Each moves an element by at most 2^-9 of itself."""
    logp, grad_h, grad_w = relative_errors(*wide(torch.bfloat16))
    assert logp < 1e-5
    assert grad_h < 2 * 2**-9 and grad_w < 2 * 2**-9


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_other_types_are_not_rounded_on_the_way(dtype: torch.dtype) -> None:
    """fp16 has too small a range for the gradient of the logits. h's own gradient has h's type."""
    logp, grad_h, grad_w = relative_errors(*wide(dtype))
    assert logp < 1e-5 and grad_w < 1e-6 and grad_h < max(1e-6, torch.finfo(dtype).eps)


def test_the_licence_to_round_ends_with_the_head_even_if_it_fails() -> None:
    h, w, temperature, _ = wide(torch.bfloat16)
    before, seen = torch.get_float32_matmul_precision(), []

    def fail(*_: object, **__: object) -> None:
        seen.append(torch.get_float32_matmul_precision())
        raise ZeroDivisionError

    with pytest.MonkeyPatch.context() as patch, pytest.raises(ZeroDivisionError):
        patch.setattr(vocab_parallel, "summarise", fail)
        head_stats(h, w, temperature, vocab_size=len(w), topk=4, chunk=48, tied=False)
    assert seen == ["medium"] and torch.get_float32_matmul_precision() == before != "medium"


def assert_log_probs(compute: Callable[[Tensor, Tensor], Tensor], peak: float) -> None:
    """``compute(logits, ids)`` gives log-probs within 1e-5 of float64's, on logits whose row maximum is ``peak``."""
    generator = torch.Generator().manual_seed(4)
    z = torch.randn(N, VOCAB, generator=generator)
    z = z - z.amax(-1, keepdim=True) + peak
    ids = z.topk(4).indices
    exact = z.double().log_softmax(-1).gather(1, ids)
    torch.testing.assert_close(compute(z, ids).double(), exact, rtol=0, atol=1e-5)


def head_log_probs(z: Tensor, ids: Tensor, forget: bool = False) -> Tensor:
    """Through the head, whose logits are made ``z`` by one-hot hidden states; ``forget`` leaves the maximum in."""
    h, weight, temperature = torch.eye(N), z.T.contiguous(), torch.ones(N)
    lse = head_stats(h, weight, temperature, vocab_size=VOCAB, topk=4, chunk=3, tied=False).lse
    lse = lse - z.amax(-1) if forget else lse
    return logits_at(h, weight, ids, temperature, chunk=3, tied=False) - lse[:, None]


@pytest.mark.parametrize("peak", [40.0, -40.0])
def test_log_probs_subtract_the_row_maximum(peak: float) -> None:
    assert_log_probs(head_log_probs, peak)


@pytest.mark.parametrize("peak", [40.0, -40.0])
def test_forgetting_the_row_maximum_is_noticed(peak: float) -> None:
    with pytest.raises(AssertionError, match="Tensor-likes are not close"):
        assert_log_probs(partial(head_log_probs, forget=True), peak)


def test_logits_that_would_overflow_exp_do_not() -> None:
    z = torch.full((N, VOCAB), 200.0)
    torch.testing.assert_close(
        head_log_probs(z, torch.zeros(N, 1, dtype=torch.int64)), torch.full((N, 1), -float(VOCAB)).abs().log().neg()
    )


@pytest.mark.parametrize("micro_batches", [1, 2])
@pytest.mark.parametrize("buffer_dtype", [torch.float64, torch.float32], ids=["same_dtype", "other_dtype"])
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_main_grad_gets_the_whole_gradient_once(tied: bool, buffer_dtype: torch.dtype, micro_batches: int) -> None:
    """With Megatron's rule: after backward the autograd gradient is added to main_grad unless flagged as added."""
    h, w, temperature = leaves()
    ids = some_ids()

    def loss(weight: Tensor) -> Tensor:
        hidden = h + torch.nn.functional.embedding(ids[:, 0], weight) if tied else h
        lse = stats(hidden, weight, temperature, topk=0, chunk=3, tied=tied).lse
        return ((logits_at(hidden, weight, ids, temperature, chunk=3, tied=tied) - lse[:, None]) ** 2).sum()

    (wanted,) = torch.autograd.grad(loss(w), w)

    weight = megatron_parameter(w, buffer_dtype)
    for _ in range(micro_batches):
        loss(weight).backward()
    assert weight.hook_calls == [True] * micro_batches
    assert weight.grad_added_to_main_grad is not tied
    torch.testing.assert_close(weight.main_grad.double() / micro_batches, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"topk": VOCAB + 1}, "topk=42"),
        ({"topk": -1}, "topk=-1"),
        ({"vocab_size": PADDED + 1}, "vocab_size=49"),
        ({"vocab_size": 0}, "vocab_size=0"),
        ({"chunk": 0}, "chunk=0"),
        ({"temperature": torch.zeros(N)}, "temperature of 0.0"),
        ({"temperature": torch.ones(N - 1)}, r"temperature \(9,\)"),
        ({"h": torch.zeros(N, HIDDEN + 1)}, r"h \(10, 9\)"),
    ],
)
def test_stats_refuse_what_does_not_fit(change: dict[str, Any], message: str) -> None:
    h, w, temperature = leaves()
    arguments: dict[str, Any] = {"h": h, "weight": w, "temperature": temperature, "vocab_size": VOCAB, "topk": 4, "chunk": 3}
    with pytest.raises(LossError, match=message):
        head_stats(**(arguments | change), tied=False)


@pytest.mark.parametrize("bad", [-100, PADDED])
def test_an_id_outside_the_weight_is_refused(bad: int) -> None:
    h, w, temperature = leaves()
    ids = some_ids()
    ids[2, 1] = bad
    with pytest.raises(LossError, match=f"{bad}; allowed is 0 to 47|from {bad} to"):
        logits_at(h, w, ids, temperature, chunk=3, tied=False)


def test_no_rows_give_no_values_and_a_zero_gradient() -> None:
    _, w, _ = leaves()
    h = torch.zeros(0, HIDDEN, dtype=torch.float64, requires_grad=True)
    found = stats(h, w, torch.zeros(0), topk=4, chunk=3)
    assert found.lse.shape == (0,) and found.topk_ids.shape == (0, 4)
    found.lse.sum().backward()
    assert w.grad is not None and not w.grad.any()
