"""Who may ask, how much at a time, and what happens to a client that is slow or goes away."""

from __future__ import annotations

import asyncio
import hmac
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager

import structlog
from fastapi import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from openclaw_core.config.serving import GatewayConfig
from openclaw_core.gateway.errors import invalid_key, slow_client, too_large, too_many_requests

log = structlog.get_logger()


KeySource = Callable[[], Mapping[str, str]]
"""Name → key, as they are now."""


class ClientGone(ConnectionError):
    """The client has closed its connection, or does not read what it asked for."""


class Keys:
    """The API keys, by name: any of them opens the gateway, and each has its own share of the requests in flight.

    ``source`` is asked at every request: keys come and go while the gateway runs.
    """

    def __init__(self, source: KeySource, gateway: GatewayConfig) -> None:
        self._source = source
        self._limit = gateway.max_concurrent_per_key
        self._in_flight: Counter[str] = Counter()

    def check(self, request: Request) -> str:
        """The name of the key that a request came with, compared in constant time. Raises ApiError (401)."""
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        sent, found = given.strip().encode(), None
        for name, key in self._source().items():
            if hmac.compare_digest(sent, key.encode()):
                found = name
        if scheme.lower() != "bearer" or found is None:
            raise invalid_key()
        return found

    @contextmanager
    def one_more(self, name: str) -> Iterator[None]:
        """A request of that key is in flight. Raises ApiError (429) where it has too many already."""
        if self._in_flight[name] >= self._limit:
            raise too_many_requests(name, self._limit)
        self._in_flight[name] += 1
        try:
            yield
        finally:
            self._in_flight[name] -= 1


async def read_body(request: Request, gateway: GatewayConfig) -> bytes:
    """The body, read no further than its limit and no longer than client_timeout_s. Raises ApiError (408, 413)."""
    body = bytearray()
    try:
        async with asyncio.timeout(gateway.client_timeout_s):
            async for chunk in request.stream():
                body += chunk
                if len(body) > gateway.max_body_bytes:
                    raise too_large(gateway.max_body_bytes)
    except TimeoutError:
        raise slow_client(gateway.client_timeout_s) from None
    return bytes(body)


class Writer:
    """Sends a response piece by piece. A client that does not take a piece for ``timeout_s`` counts as gone."""

    def __init__(self, send: Send, timeout_s: float) -> None:
        self._send, self._timeout_s = send, timeout_s

    async def begin(self, headers: Mapping[str, str]) -> None:
        """Status 200 and the headers."""
        pairs = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
        await self._bounded({"type": "http.response.start", "status": 200, "headers": pairs})

    async def write(self, text: str) -> None:
        """The next piece; nothing is sent for an empty one."""
        if text:
            await self._bounded({"type": "http.response.body", "body": text.encode(), "more_body": True})

    async def end(self, text: str) -> None:
        """The last piece."""
        await self._bounded({"type": "http.response.body", "body": text.encode(), "more_body": False})

    async def _bounded(self, message: dict[str, object]) -> None:
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._send(message)
        except TimeoutError:
            raise ClientGone(f"the client took nothing for {self._timeout_s:g} s") from None


class Watched(Response):
    """Runs ``respond`` to its end, or until the client is gone: then it is cancelled, and with it the request in the engine."""

    def __init__(self, respond: Callable[[Scope, Receive, Send], Awaitable[None]]) -> None:
        super().__init__()
        self._respond = respond

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        work = asyncio.ensure_future(self._respond(scope, receive, send))
        gone = asyncio.ensure_future(_disconnected(receive))
        try:
            await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                work.result()
            else:
                log.info("client_gone", path=scope["path"])
        except ClientGone as error:
            log.info("client_gone", path=scope["path"], reason=str(error))
        finally:
            for task in (work, gone):
                task.cancel()
            await asyncio.gather(work, gone, return_exceptions=True)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
