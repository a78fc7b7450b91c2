"""The requests being decoded together: they enter by a prefill of their own and leave when they end, between the steps."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

import torch

from openclaw_core.engines.policy import Policy
from openclaw_core.engines.prefixes import PrefixStore
from openclaw_core.engines.protocol import GenerateRequest, Tokens, TopLogprobs
from openclaw_core.engines.sampling import sample, seeded
from openclaw_core.engines.slots import KeysValues
from openclaw_core.types import FinishReason

_PADDING = 1.25
"""Prompts are prefilled together where that computes at most so many times their tokens."""
_SMALL = 64
"""Tokens, padding included, below which a prefill costs the same whatever it computes."""


@dataclass(eq=False, slots=True)
class Row:
    """A request and what has been sampled for it."""

    request: GenerateRequest
    token_ids: list[int] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    generator: torch.Generator = field(init=False)
    _new: list[tuple[int, float, TopLogprobs | None]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.generator = seeded(self.request.sampling.seed, drawn=self.request.continued)

    def take(self, token: int, logprob: float, top: TopLogprobs | None) -> None:
        """Append a sampled token and see whether it is the last one."""
        self.token_ids.append(token)
        self._new.append((token, logprob, top))
        if token in self.request.stop_token_ids:
            self.finish_reason = FinishReason.STOP
        elif len(self.token_ids) == self.request.sampling.max_new_tokens:
            self.finish_reason = FinishReason.LENGTH

    def hand_over(self, version: int) -> Tokens | None:
        """What was sampled since the last call, if anything."""
        if not self._new:
            return None
        ids, logprobs, tops = zip(*self._new, strict=True)
        self._new.clear()
        return Tokens(ids, logprobs, version, self.finish_reason, tops if self.request.top_logprobs else ())

    def generated(self) -> Sequence[int]:
        """All ids of the answer, those from before a publish included."""
        before = self.request.continued
        return [*self.request.input_ids[len(self.request.input_ids) - before :], *self.token_ids]

    @property
    def most_tokens(self) -> int:
        """Prompt and answer, if the answer becomes as long as it may."""
        return len(self.request.input_ids) + self.request.sampling.max_new_tokens


@dataclass(slots=True)
class Counters:
    """Tokens since the engine's start."""

    prompt_tokens: int = 0
    """Of the prompts of all requests that were begun."""
    cached_tokens: int = 0
    """Of those, tokens whose keys and values were still there from an earlier sequence."""
    generated_tokens: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class _Entering:
    row: Row
    prefix: KeysValues | None

    @property
    def start(self) -> int:
        """Tokens that need no prefill."""
        return 0 if self.prefix is None else self.prefix.shape[3]

    @property
    def new_ids(self) -> tuple[int, ...]:
        return self.row.request.input_ids[self.start :]


class DecodeBatch:
    """Rows that get one token a step each. Used by one thread, in torch's inference mode.

    The keys and values of a row that leaves, finished or not, go to ``prefixes``: all but those of its last token, which
    was never fed.
    """

    def __init__(self, policy: Policy, prefixes: PrefixStore, counters: Counters) -> None:
        self.rows: list[Row] = []
        self._policy, self._prefixes, self._counters = policy, prefixes, counters
        self._lengths: list[int] = []
        self._slots = policy.slots()

    def step(self) -> None:
        """Sample one token for every row; those that it finishes leave."""
        if not self.rows:
            return
        self._slots.reserve(len(self.rows), max(self._lengths) + 1)
        ids = torch.tensor([[row.token_ids[-1]] for row in self.rows])
        window = self._slots.window(0, self._lengths, 1)
        logits = self._policy.next_logits(ids, [0] * len(self.rows), window)
        self._lengths = [length + 1 for length in self._lengths]
        self._sample(logits, self.rows)

    def admit(self, rows: Sequence[Row]) -> None:
        """Prefill ``rows`` and sample their first tokens; those that it finishes leave."""
        entering = [_Entering(row, self._prefixes.longest(row.request.input_ids)) for row in rows]
        for group in _groups(sorted(entering, key=lambda one: len(one.new_ids))):
            self._prefill(group)

    def remove(self, rows: Collection[Row]) -> None:
        """Take ``rows`` out; their places are filled from the end."""
        for row in rows:
            place, last = self.rows.index(row), len(self.rows) - 1
            known = (*row.request.input_ids, *row.token_ids)[: self._lengths[place]]
            self._prefixes.put(known, lambda place=place, known=known: self._slots.read(place, len(known)))
            if place != last:
                self._slots.move(last, place, self._lengths[last])
                self.rows[place], self._lengths[place] = self.rows[last], self._lengths[last]
            del self.rows[last], self._lengths[last]
        if not self.rows:
            self._slots.release()

    def _prefill(self, group: Sequence[_Entering]) -> None:
        first, starts = len(self.rows), [one.start for one in group]
        longest = max(len(one.new_ids) for one in group)
        self._slots.reserve(first + len(group), max(starts) + longest)
        ids = torch.zeros(len(group), longest, dtype=torch.long)
        for index, one in enumerate(group):
            ids[index, : len(one.new_ids)] = torch.tensor(one.new_ids)
            if one.prefix is not None:
                self._slots.write(first + index, one.prefix)
        window = self._slots.window(first, starts, longest)
        logits = self._policy.next_logits(ids, [len(one.new_ids) - 1 for one in group], window)
        rows = [one.row for one in group]
        self.rows += rows
        self._lengths += [len(row.request.input_ids) for row in rows]
        self._counters.prompt_tokens += sum(len(row.request.input_ids) for row in rows)
        self._counters.cached_tokens += sum(starts)
        self._sample(logits, rows)

    def _sample(self, logits: torch.Tensor, rows: Sequence[Row]) -> None:
        samplings = [row.request.sampling for row in rows]
        sampled = sample(logits, samplings, [row.generator for row in rows], [row.generated for row in rows])
        pairs = zip(sampled.tokens.tolist(), sampled.logprobs.tolist(), strict=True)
        for index, (row, (token, logprob)) in enumerate(zip(rows, pairs, strict=True)):
            count = row.request.top_logprobs
            row.take(token, logprob, sampled.top(index, count) if count else None)
        self._counters.generated_tokens += len(rows)
        self.remove([row for row in rows if row.finish_reason is not None])


def _groups(entering: Sequence[_Entering]) -> Iterator[Sequence[_Entering]]:
    """Neighbours that are prefilled together; ``entering`` is sorted by the number of new ids."""
    start, tokens = 0, 0
    for end, one in enumerate(entering):
        new = len(one.new_ids)
        computed = (end - start + 1) * new
        if end > start and computed > max(_SMALL, _PADDING * (tokens + new)):
            yield entering[start:end]
            start, tokens = end, 0
        tokens += new
    if entering:
        yield entering[start:]
