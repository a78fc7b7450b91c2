"""An answer in the making: what a request's engines sample, as it becomes visible, and what it is at its end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable

from openclaw_core.engines.protocol import Tokens
from openclaw_core.gateway.streaming import AnswerStream, Delta
from openclaw_core.gateway.wire import Envelope, FinishedChoice, usage_json


class Choice:
    """One answer. ``begun`` is called at its first token, ``ended`` when it is complete and its last piece has not left yet."""

    def __init__(
        self,
        pieces: AsyncGenerator[Tokens, None],
        stream: AnswerStream,
        ended: Callable[[Choice], None],
        *,
        begun: Callable[[], None],
    ) -> None:
        self._pieces, self._stream, self._ended, self._begun = pieces, stream, ended, begun
        self._first: Tokens | None = None
        self.sampled = stream.sampled
        self.finished: FinishedChoice | None = None

    @property
    def first(self) -> Tokens:
        """The first tokens, once the choice has begun."""
        assert self._first is not None
        return self._first

    async def begin(self) -> None:
        """Wait for the first tokens. Raises ApiError: nothing has left yet, so the client gets it as its answer."""
        self._first = await anext(self._pieces)
        self._begun()

    async def deltas(self) -> AsyncGenerator[Delta, None]:
        """What becomes visible, as it does; after the last one the choice is ``finished``. Raises ApiError."""
        tokens = self.first
        while True:
            if delta := self._stream.feed(tokens):
                yield delta
            if self.sampled.finish_reason is not None:
                break
            tokens = await anext(self._pieces)
        await self.aclose()  # at a stop string the engine is still at work
        answer, rest = self._stream.finish()
        assert self.sampled.finish_reason is not None
        self.finished = FinishedChoice(answer, self.sampled.finish_reason, self.sampled.tokens)
        self._ended(self)
        yield rest

    async def aclose(self) -> None:
        """Give the request up, if it is not complete."""
        await self._pieces.aclose()


class Reply:
    """An answer of one or more choices, which are sampled together; ``headers`` say how."""

    def __init__(self, choices: list[Choice], envelope: Envelope, headers: dict[str, str], prompt_tokens: int) -> None:
        self.choices, self.envelope = choices, envelope
        self._headers, self._prompt_tokens = headers, prompt_tokens

    async def begin(self) -> None:
        """Wait until every choice has begun. Raises ApiError."""
        await asyncio.gather(*(choice.begin() for choice in self.choices))

    async def aclose(self) -> None:
        """Give up what is not complete."""
        for choice in self.choices:
            await choice.aclose()

    async def complete(self) -> list[FinishedChoice]:
        """All choices, whole. Raises ApiError."""
        for choice in self.choices:
            async for _ in choice.deltas():
                pass
        return [choice.finished for choice in self.choices if choice.finished]

    @property
    def headers(self) -> dict[str, str]:
        """Of the response. The version is that of the oldest token."""
        return self._headers | {"x-openclaw-weight-version": str(self.choices[0].first.weight_version)}

    @property
    def usage(self) -> dict[str, int]:
        """Token counts, once the answer is complete."""
        return usage_json(self._prompt_tokens, sum(len(choice.sampled.tokens) for choice in self.choices))
