"""The Ray actor around a local engine. Answers leave it as one stream of events, not as an object a token a request."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import structlog

from openclaw_core.engines.protocol import EngineError, GenerateRequest, Tokens

if TYPE_CHECKING:
    from openclaw_core.weights.shared import SharedWeights

log = structlog.get_logger()

Event = tuple[int, Tokens | EngineError]
"""A request's number and what there is of it: tokens, of which the last say so, or why there will be no more."""

_EARLY = 1024
"""Numbers of requests remembered that were given up before they came."""


@dataclass(eq=False, slots=True)
class _Client:
    """One listener and its requests; numbers are the client's own."""

    events: list[Event] = field(default_factory=list)
    news: asyncio.Event = field(default_factory=asyncio.Event)
    answering: dict[int, asyncio.Task[None]] = field(default_factory=dict)
    given_up: deque[int] = field(default_factory=lambda: deque(maxlen=_EARLY))

    def tell(self, number: int, what: Tokens | EngineError) -> None:
        self.events.append((number, what))
        self.news.set()


class EngineActor:
    """``options`` are LocalEngine's. Every client (a name of its own choice) has a stream of events."""

    def __init__(self, directory: str, options: dict[str, Any]) -> None:
        from openclaw_core.engines.local import LocalEngine

        self._engine = LocalEngine(directory, **options)
        self._clients: dict[str, _Client] = {}

    async def submit(self, client: str, number: int, request: GenerateRequest) -> None:
        """Begin a request; tokens and errors come as events. Returns nothing, so that it can be sent without waiting."""
        known = self._client(client)
        if number in known.given_up:
            return
        task = asyncio.create_task(self._answer(known, number, request))
        known.answering[number] = task
        task.add_done_callback(lambda _: known.answering.pop(number, None))

    async def cancel(self, client: str, number: int) -> None:
        """Give a request up, also one that has not come yet."""
        known = self._client(client)
        if (task := known.answering.get(number)) is not None:
            task.cancel()
        else:
            known.given_up.append(number)

    async def events(self, client: str) -> AsyncIterator[list[Event]]:
        """What happens to the client's requests, a decode step at a time. When it is closed they are given up."""
        known = self._client(client)
        try:
            while True:
                await known.news.wait()
                known.news.clear()
                events, known.events = known.events, []
                yield events
        finally:
            self._clients.pop(client, None)
            for task in list(known.answering.values()):
                task.cancel()

    async def prefill_logprobs(self, prompt_ids: Any, response_ids: Any, temperature: float) -> tuple[float, ...]:
        """See Engine."""
        return await self._engine.prefill_logprobs(prompt_ids, response_ids, temperature)

    async def pause(self) -> None:
        """See Engine."""
        await self._engine.pause()

    async def resume(self) -> None:
        """See Engine."""
        await self._engine.resume()

    async def reaches(self, weights: SharedWeights) -> bool:
        """Whether these weights can be read here: they lie in the memory of this host."""
        return weights.reachable()

    async def load_weights(self, weights: Any, version: int, checksum: str) -> None:
        """See LocalEngine."""
        await self._engine.load_weights(weights, version, checksum)

    async def version(self) -> int:
        """See Engine."""
        return await self._engine.version()

    async def stats(self) -> dict[str, int]:
        """See LocalEngine."""
        return self._engine.stats()

    def _client(self, name: str) -> _Client:
        return self._clients.setdefault(name, _Client())

    async def _answer(self, client: _Client, number: int, request: GenerateRequest) -> None:
        # A step's tokens are put into all queues before any of these tasks goes on, and the stream goes on after all of
        # them: so a step is one list of events.
        try:
            async for tokens in self._engine.generate(request):
                client.tell(number, tokens)
        except EngineError as error:
            client.tell(number, error)
        except Exception as error:  # a fault of the engine's must reach who waits, not end as a task's unread result
            log.error("answer_failed", request=request.request_id, exc_info=error)
            client.tell(number, EngineError(f"{type(error).__name__}: {error}"))
