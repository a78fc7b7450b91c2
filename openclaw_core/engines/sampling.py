"""Logits → tokens and their log-probs, for a batch whose rows all have sampling parameters of their own.

The order is SGLang's: penalties over what was generated so far, temperature, log-probs, then top_k, top_p and min_p.
So the log-probs are of the tempered distribution over the full vocabulary, whatever was cut off before drawing.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from openclaw_core.types import Sampling


def seeded(seed: int | None) -> torch.Generator:
    """A request's own random numbers: they do not depend on which requests share its batch."""
    generator = torch.Generator()
    if seed is None:
        generator.seed()
    else:
        generator.manual_seed(seed)
    return generator


def sample(
    logits: Float[Tensor, "b v"],
    samplings: Sequence[Sampling],
    generators: Sequence[torch.Generator],
    generated: Sequence[Sequence[int]],
) -> tuple[Int[Tensor, " b"], Float[Tensor, " b"]]:
    """The next token of each row, and its log-prob. ``logits`` are fp32 and are overwritten.

    Temperature 0 takes the most probable token and reports log-probs at temperature 1.
    """
    for row, sampling in enumerate(samplings):
        penalise(logits[row], sampling, generated[row])
    logits /= torch.tensor([sampling.temperature or 1.0 for sampling in samplings]).unsqueeze(1)
    logprobs = torch.log_softmax(logits, dim=-1)
    weights = logprobs.exp()
    for row, sampling in enumerate(samplings):
        if sampling.temperature > 0:
            cut_off(weights[row], sampling)
    drawn = _draw(weights, generators)
    greedy = torch.tensor([sampling.temperature == 0 for sampling in samplings])
    tokens = torch.where(greedy, logprobs.argmax(dim=-1), drawn)
    return tokens, logprobs.gather(1, tokens.unsqueeze(1)).squeeze(1)


def penalise(logits: Float[Tensor, " v"], sampling: Sampling, generated: Sequence[int]) -> None:
    """Lower, in place, the logits of the tokens generated so far; the prompt does not count."""
    shaped = sampling.repetition_penalty != 1.0 or sampling.frequency_penalty != 0.0 or sampling.presence_penalty != 0.0
    if not shaped or not generated:
        return
    tokens, counts = torch.tensor(generated).unique(return_counts=True)
    seen = logits[tokens]
    seen = torch.where(seen > 0, seen / sampling.repetition_penalty, seen * sampling.repetition_penalty)
    logits[tokens] = seen - sampling.frequency_penalty * counts - sampling.presence_penalty


def cut_off(weights: Float[Tensor, " v"], sampling: Sampling) -> None:
    """Set to 0, in place, the probabilities that top_k, top_p and min_p exclude. The most probable token always stays."""
    if sampling.top_k < 1 and sampling.top_p == 1.0 and sampling.min_p == 0.0:
        return
    ordered, order = weights.sort(descending=True)
    drop = ordered.cumsum(0) - ordered > sampling.top_p
    drop |= ordered < sampling.min_p * ordered[0]
    if sampling.top_k >= 1:
        drop[sampling.top_k :] = True
    weights[order[drop]] = 0.0


def _draw(weights: Float[Tensor, "b v"], generators: Sequence[torch.Generator]) -> Int[Tensor, " b"]:
    """One index a row with probability in proportion to its weight: one random number a row, through the inverse CDF.

    In float64: near 1 the steps of float32 are 6e-8, and rarer tokens would never be drawn.
    """
    cdf = weights.cumsum(dim=-1, dtype=torch.float64)
    uniform = torch.cat([torch.rand(1, generator=generator, dtype=torch.float64) for generator in generators])
    threshold = (uniform * cdf[:, -1]).unsqueeze(1)
    return torch.searchsorted(cdf, threshold, right=True).squeeze(1).clamp(max=weights.shape[1] - 1)
