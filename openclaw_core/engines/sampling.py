"""Logits → tokens and their log-probs, for a batch whose rows all have sampling parameters of their own.

The order is SGLang's: penalties over what was generated so far, temperature, log-probs, then top_k, top_p and min_p.
So the log-probs are of the tempered distribution over the full vocabulary, whatever was cut off before drawing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from openclaw_core.engines.protocol import TopLogprobs
from openclaw_core.types import Sampling

_FEW = 256
"""Most probable tokens that are put in order before all are, which takes ten times as long."""
_BLOCK = 128
"""A draw looks for the block of so many tokens first, then for the token in it."""


@dataclass(frozen=True, slots=True)
class Sampled:
    """The next token of each row, its log-prob, and those of all tokens."""

    tokens: Int[Tensor, " b"]
    logprobs: Float[Tensor, " b"]
    distribution: Float[Tensor, "b v"]

    def top(self, row: int, count: int) -> TopLogprobs:
        """The ``count`` most probable tokens of ``row``."""
        best = self.distribution[row].topk(count)
        return tuple(zip(best.indices.tolist(), best.values.tolist(), strict=True))


def seeded(seed: int | None, drawn: int = 0) -> torch.Generator:
    """A request's own random numbers, which do not depend on its batch. ``drawn``: how many of them were used before."""
    generator = torch.Generator()
    if seed is None:
        generator.seed()
    else:
        generator.manual_seed(seed)
        torch.rand(drawn, generator=generator, dtype=torch.float64)
    return generator


def sample(
    logits: Float[Tensor, "b v"],
    samplings: Sequence[Sampling],
    generators: Sequence[torch.Generator],
    generated: Sequence[Callable[[], Sequence[int]]],
) -> Sampled:
    """The next token of each row. ``logits`` are fp32 and are overwritten; ``generated``: asked for by rows with a penalty.

    Temperature 0 takes the most probable token and reports log-probs at temperature 1.
    """
    for row, sampling in enumerate(samplings):
        if _penalised(sampling):
            penalise(logits[row], sampling, generated[row]())
    logits /= torch.tensor([sampling.temperature or 1.0 for sampling in samplings]).unsqueeze(1)
    distribution = torch.log_softmax(logits, dim=-1)
    greedy = [sampling.temperature == 0 for sampling in samplings]
    if all(greedy):
        tokens = distribution.argmax(dim=-1)
    else:
        weights = torch.exp(distribution, out=logits)
        cut = [row for row, sampling in enumerate(samplings) if not greedy[row] and _cut(sampling)]
        if cut:
            weights[cut] = cut_off(weights[cut], [samplings[row] for row in cut])
        tokens = _draw(weights, generators)
        if any(greedy):
            tokens = torch.where(torch.tensor(greedy), distribution.argmax(dim=-1), tokens)
    return Sampled(tokens, distribution.gather(1, tokens.unsqueeze(1)).squeeze(1), distribution)


def penalise(logits: Float[Tensor, " v"], sampling: Sampling, generated: Sequence[int]) -> None:
    """Lower, in place, the logits of the tokens generated so far; the prompt does not count."""
    if not generated:
        return
    tokens, counts = torch.tensor(generated).unique(return_counts=True)
    seen = logits[tokens]
    seen = torch.where(seen > 0, seen / sampling.repetition_penalty, seen * sampling.repetition_penalty)
    logits[tokens] = seen - sampling.frequency_penalty * counts - sampling.presence_penalty


def cut_off(weights: Float[Tensor, "b v"], samplings: Sequence[Sampling]) -> Float[Tensor, "b v"]:
    """Probabilities with 0 for those that top_k, top_p and min_p exclude. The most probable token always stays."""
    size = weights.shape[1]
    top_k = _column(sampling.top_k if sampling.top_k >= 1 else size for sampling in samplings)
    top_p = _column(sampling.top_p for sampling in samplings)
    min_p = _column(sampling.min_p for sampling in samplings)
    few = min(_FEW, size)
    while True:
        # Whatever comes after a token that is dropped is dropped too: it is enough to order them up to there.
        ordered, order = weights.topk(few) if few < size else weights.sort(descending=True)
        drop = ordered.cumsum(1) - ordered > top_p
        drop |= ordered < min_p * ordered[:, :1]
        drop |= torch.arange(few) >= top_k
        if few == size or drop[:, -1].all():
            return torch.zeros_like(weights).scatter_(1, order, ordered.masked_fill(drop, 0.0))
        few = size


def _penalised(sampling: Sampling) -> bool:
    return sampling.repetition_penalty != 1.0 or sampling.frequency_penalty != 0.0 or sampling.presence_penalty != 0.0


def _cut(sampling: Sampling) -> bool:
    return sampling.top_k >= 1 or sampling.top_p != 1.0 or sampling.min_p != 0.0


def _column(values: Iterable[float]) -> Tensor:
    return torch.tensor(list(values)).unsqueeze(1)


def _draw(weights: Float[Tensor, "b v"], generators: Sequence[torch.Generator]) -> Int[Tensor, " b"]:
    """One index a row with probability in proportion to its weight: one random number a row, through the inverse CDF.

    In float64: near 1 the steps of float32 are 6e-8, and rarer tokens would never be drawn. What weighs nothing is never
    drawn: a threshold is kept below the end of its CDF, which rounding could make it reach.
    """
    rows, size = torch.arange(len(weights)), weights.shape[1]
    blocks = F.pad(weights, (0, -size % _BLOCK)).unflatten(1, (-1, _BLOCK))
    masses = blocks.sum(-1, dtype=torch.float64)
    ends = masses.cumsum(-1)
    uniform = torch.cat([torch.rand(1, generator=generator, dtype=torch.float64) for generator in generators])
    threshold = _below(uniform * ends[:, -1], ends)
    block = torch.searchsorted(ends, threshold.unsqueeze(1), right=True).squeeze(1).clamp(max=blocks.shape[1] - 1)
    cdf = blocks[rows, block].double().cumsum(-1)
    rest = _below((threshold - ends[rows, block] + masses[rows, block]).clamp(min=0.0), cdf)
    token = torch.searchsorted(cdf, rest.unsqueeze(1), right=True).squeeze(1)
    return (block * _BLOCK + token).clamp(max=size - 1)


def _below(threshold: Float[Tensor, " b"], cdf: Float[Tensor, "b n"]) -> Float[Tensor, " b"]:
    end = cdf[:, -1]
    return torch.minimum(threshold, torch.nextafter(end, torch.zeros_like(end)))
