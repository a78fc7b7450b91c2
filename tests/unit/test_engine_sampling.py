"""From logits to tokens: penalties, temperature, what is cut off, and what log-probs are reported."""

from __future__ import annotations

import math

import pytest
import torch

from openclaw_core.engines.sampling import Sampled, cut_off, penalise, sample, seeded
from openclaw_core.types import Sampling

LOGITS = torch.tensor([2.0, 1.0, 0.0, -1.0, -3.0])


def draw(sampling: Sampling, count: int, generated: tuple[int, ...] = ()) -> tuple[torch.Tensor, torch.Tensor]:
    """``count`` independent draws from LOGITS, and their log-probs."""
    drawn = sampled(LOGITS.expand(count, -1).clone(), [sampling] * count, list(range(count)), generated)
    return drawn.tokens, drawn.logprobs


def sampled(
    logits: torch.Tensor, samplings: list[Sampling], seeds: list[int | None], generated: tuple[int, ...] = ()
) -> Sampled:
    return sample(logits, samplings, [seeded(seed) for seed in seeds], [lambda: generated] * len(samplings))


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
    kept = cut_off(weights[None], [Sampling(1.0, 1, top_k=2)])
    torch.testing.assert_close(kept, torch.where(torch.arange(5) < 2, weights, 0.0)[None])


@pytest.mark.parametrize("cut", [{"top_p": 0.4}, {"top_p": 0.9999}, {"min_p": 0.9}, {"min_p": 0.01}, {"top_k": 300}])
def test_a_cut_of_a_large_vocabulary_is_that_of_the_whole_order(cut: dict[str, float]) -> None:
    weights = torch.softmax(torch.randn(3, 2000, generator=torch.Generator().manual_seed(0)), dim=1)
    ordered, order = weights.sort(descending=True)
    kept = ordered.cumsum(1) - ordered <= cut.get("top_p", 1.0)
    kept &= ordered >= cut.get("min_p", 0.0) * ordered[:, :1]
    kept &= torch.arange(2000) < cut.get("top_k", 2000)
    expected = torch.zeros_like(weights).scatter_(1, order, ordered * kept)
    assert 0 < (expected > 0).sum() < expected.numel()
    found = cut_off(weights, [Sampling(1.0, 1, **cut)] * 3)  # pyright: ignore[reportArgumentType]
    assert torch.equal(found, expected)


def test_each_row_has_its_own_cut() -> None:
    order = torch.tensor([[0, 1, 2, 3, 4], [4, 3, 2, 1, 0], [2, 0, 4, 1, 3]])
    weights = torch.softmax(LOGITS, dim=0)[order]
    samplings = [Sampling(1.0, 1, top_k=3), Sampling(1.0, 1, top_p=0.7), Sampling(1.0, 1, min_p=0.3, top_k=4)]
    for cut in (cut_off(weights, samplings), torch.cat([cut_off(weights[i : i + 1], samplings[i : i + 1]) for i in range(3)])):
        assert [set(order[row][cut[row] > 0].tolist()) for row in range(3)] == [{0, 1, 2}, {0, 1}, {0, 1}]


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
    drawn = sampled(LOGITS.expand(3, -1).clone(), samplings, [s.seed for s in samplings])
    assert drawn.tokens[0] == drawn.tokens[2] == 0
    assert drawn.logprobs[1].item() == pytest.approx(torch.log_softmax(LOGITS / 2, dim=0)[drawn.tokens[1]].item())


def test_only_rows_with_a_penalty_are_lowered() -> None:
    samplings = [Sampling(1.0, 1), Sampling(1.0, 1, repetition_penalty=2.0)]
    drawn = sampled(LOGITS.expand(2, -1).clone(), samplings, [0, 0], generated=(0, 3))
    torch.testing.assert_close(drawn.distribution[0], torch.log_softmax(LOGITS, dim=0))
    torch.testing.assert_close(drawn.distribution[1], torch.log_softmax(torch.tensor([1.0, 1.0, 0.0, -2.0, -3.0]), dim=0))


def test_alternatives_are_the_best_of_the_distribution_that_was_drawn_from() -> None:
    drawn = sampled(LOGITS.flip(0)[None].clone(), [Sampling(0.5, 1, top_k=1)], [0])
    expected = torch.log_softmax(LOGITS / 0.5, dim=0)
    assert drawn.top(0, 2) == ((4, pytest.approx(expected[0].item())), (3, pytest.approx(expected[1].item())))


@pytest.mark.parametrize("seed", [0, 5, -5, 2**63 - 1])
def test_a_seed_repeats_itself(seed: int) -> None:
    assert torch.rand(3, generator=seeded(seed)).tolist() == torch.rand(3, generator=seeded(seed)).tolist()


@pytest.mark.parametrize("drawn", [0, 1, 5, 40])
def test_a_continued_request_goes_on_with_its_random_numbers(drawn: int) -> None:
    whole, rest = seeded(3), seeded(3, drawn)
    numbers = [torch.rand(1, generator=whole, dtype=torch.float64).item() for _ in range(drawn + 3)]
    assert [torch.rand(1, generator=rest, dtype=torch.float64).item() for _ in range(3)] == numbers[drawn:]


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
    tokens = sampled(logits, [Sampling(1.0, 1)], [None]).tokens
    assert tokens.item() == impossible + math.floor(uniform * (size - impossible))


def test_the_rarest_token_can_be_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "rand", lambda *_, dtype, **__: torch.tensor([1 - 1e-10], dtype=dtype))
    drawn = sampled(torch.tensor([[0.0, -20.0]]), [Sampling(1.0, 1)], [None])
    assert (drawn.tokens.item(), drawn.logprobs.item()) == (1, pytest.approx(-20.0))


@pytest.mark.parametrize("uniform", [0.0, 0.5, 1 - 2**-53])
def test_what_is_impossible_is_not_drawn_at_the_ends_either(monkeypatch: pytest.MonkeyPatch, uniform: float) -> None:
    monkeypatch.setattr(torch, "rand", lambda *_, dtype, **__: torch.tensor([uniform], dtype=dtype))
    logits = torch.full((1, 1000), -math.inf)
    possible = range(300, 500)
    logits[:, 300:500] = torch.linspace(-3, 3, len(possible))
    assert sampled(logits, [Sampling(1.0, 1)], [None]).tokens.item() in possible
