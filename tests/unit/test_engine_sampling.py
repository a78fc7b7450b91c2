"""From logits to tokens: penalties, temperature, what is cut off, and what log-probs are reported."""

from __future__ import annotations

import math

import pytest
import torch

from openclaw_core.engines.sampling import cut_off, penalise, sample, seeded
from openclaw_core.types import Sampling

LOGITS = torch.tensor([2.0, 1.0, 0.0, -1.0, -3.0])


def draw(sampling: Sampling, count: int, generated: tuple[int, ...] = ()) -> tuple[torch.Tensor, torch.Tensor]:
    """``count`` independent draws from LOGITS."""
    logits = LOGITS.expand(count, -1).clone()
    return sample(logits, [sampling] * count, [seeded(seed) for seed in range(count)], [generated] * count)


def shares(tokens: torch.Tensor) -> torch.Tensor:
    return torch.bincount(tokens, minlength=len(LOGITS)) / len(tokens)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_tokens_are_drawn_in_proportion_to_the_tempered_softmax(temperature: float) -> None:
    count = 4000
    tokens, logprobs = draw(Sampling(temperature, 1), count)
    expected = torch.softmax(LOGITS / temperature, dim=0)
    error = (expected * (1 - expected) / count).sqrt()
    assert ((shares(tokens) - expected).abs() < 4 * error + 1e-3).all()
    torch.testing.assert_close(logprobs, torch.log_softmax(LOGITS / temperature, dim=0)[tokens])


def test_temperature_zero_takes_the_best_token_and_reports_temperature_one() -> None:
    tokens, logprobs = draw(Sampling(0.0, 1), 3)
    assert tokens.tolist() == [0, 0, 0]
    torch.testing.assert_close(logprobs, torch.log_softmax(LOGITS, dim=0)[:1].expand(3))


@pytest.mark.parametrize(
    ("cut", "allowed"),
    [
        ({"top_k": 1}, {0}),
        ({"top_k": 3}, {0, 1, 2}),
        ({"top_p": 0.5}, {0}),
        ({"top_p": 0.7}, {0, 1}),
        ({"min_p": 0.3}, {0, 1}),
        ({"top_k": 3, "top_p": 0.7}, {0, 1}),
        ({"top_p": 1e-9}, {0}),
        ({}, {0, 1, 2, 3, 4}),
    ],
)
def test_what_is_cut_off_is_never_drawn_and_log_probs_ignore_the_cut(cut: dict[str, float], allowed: set[int]) -> None:
    tokens, logprobs = draw(Sampling(1.0, 1, **cut), 1500)  # pyright: ignore[reportArgumentType]
    assert set(tokens.tolist()) == allowed
    torch.testing.assert_close(logprobs, torch.log_softmax(LOGITS, dim=0)[tokens])


def test_a_cut_keeps_the_proportions_of_the_rest() -> None:
    weights = torch.softmax(LOGITS, dim=0)
    kept = weights.clone()
    cut_off(kept, Sampling(1.0, 1, top_k=2))
    torch.testing.assert_close(kept, torch.where(torch.arange(5) < 2, weights, 0.0))


@pytest.mark.parametrize(
    ("penalty", "expected"),
    [
        ({"repetition_penalty": 2.0}, [1.0, 1.0, 0.0, -2.0, -3.0]),
        ({"frequency_penalty": 0.5}, [1.0, 1.0, 0.0, -1.5, -3.0]),
        ({"presence_penalty": 0.5}, [1.5, 1.0, 0.0, -1.5, -3.0]),
        ({}, LOGITS.tolist()),
    ],
)
def test_penalties_lower_what_was_generated(penalty: dict[str, float], expected: list[float]) -> None:
    logits = LOGITS.clone()
    penalise(logits, Sampling(1.0, 1, **penalty), (0, 3, 0))  # pyright: ignore[reportArgumentType]
    assert logits.tolist() == expected
    penalise(logits, Sampling(1.0, 1, **penalty), ())  # pyright: ignore[reportArgumentType]
    assert logits.tolist() == expected


def test_log_probs_are_those_after_penalty_and_temperature() -> None:
    tokens, logprobs = draw(Sampling(0.5, 1, repetition_penalty=2.0), 20, generated=(0, 3))
    shaped = torch.tensor([1.0, 1.0, 0.0, -2.0, -3.0]) / 0.5
    torch.testing.assert_close(logprobs, torch.log_softmax(shaped, dim=0)[tokens])


def test_rows_of_one_batch_have_their_own_parameters() -> None:
    samplings = [Sampling(0.0, 1), Sampling(2.0, 1, seed=1), Sampling(1.0, 1, top_k=1)]
    tokens, logprobs = sample(LOGITS.expand(3, -1).clone(), samplings, [seeded(s.seed) for s in samplings], [(), (), ()])
    assert tokens[0] == tokens[2] == 0
    assert logprobs[1].item() == pytest.approx(torch.log_softmax(LOGITS / 2, dim=0)[tokens[1]].item())


@pytest.mark.parametrize("seed", [0, 5, -5, 2**63 - 1])
def test_a_seed_repeats_itself(seed: int) -> None:
    assert torch.rand(3, generator=seeded(seed)).tolist() == torch.rand(3, generator=seeded(seed)).tolist()


def test_without_a_seed_requests_differ() -> None:
    assert torch.rand(3, generator=seeded(None)).tolist() != torch.rand(3, generator=seeded(None)).tolist()


@pytest.mark.parametrize("uniform", [0.0, 0.1234567, 0.5000001, 0.9999999, 1 - 2**-53])
def test_a_draw_is_the_exact_inverse_of_the_cdf_over_a_large_vocabulary(
    monkeypatch: pytest.MonkeyPatch, uniform: float
) -> None:
    """All tokens alike, the first 1,000 impossible: the random number says which one it is."""
    impossible, size = 1000, 150_000
    logits = torch.zeros(1, size)
    logits[:, :impossible] = -math.inf
    monkeypatch.setattr(torch, "rand", lambda *_, dtype, **__: torch.tensor([uniform], dtype=dtype))
    tokens, _ = sample(logits, [Sampling(1.0, 1)], [seeded(0)], [()])
    assert tokens.item() == impossible + math.floor(uniform * (size - impossible))


def test_the_rarest_token_can_be_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "rand", lambda *_, dtype, **__: torch.tensor([1 - 1e-10], dtype=dtype))
    tokens, logprobs = sample(torch.tensor([[0.0, -20.0]]), [Sampling(1.0, 1)], [seeded(0)], [()])
    assert (tokens.item(), logprobs.item()) == (1, pytest.approx(-20.0))
