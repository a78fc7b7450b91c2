"""Who may ask, how much at a time, and what happens to a client that is slow or goes away."""

from __future__ import annotations

import asyncio
import hmac
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager

import structlog
from fastapi import Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from openclaw_core.config.serving import GatewayConfig
from openclaw_core.gateway.errors import invalid_key, slow_client, too_large, too_many_requests

log = structlog.get_logger()


KeySource = Callable[[], Mapping[str, str]]
"""Name → key, as they are now."""


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
    """Sends a response piece by piece."""

    def __init__(self, send: Send) -> None:
        self._send = send

    async def begin(self, headers: Mapping[str, str]) -> None:
        """Status 200 and the headers."""
        pairs = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
        await self._send({"type": "http.response.start", "status": 200, "headers": pairs})

    async def write(self, text: str) -> None:
        """The next piece; nothing is sent for an empty one."""
        if text:
            await self._send({"type": "http.response.body", "body": text.encode(), "more_body": True})

    async def end(self, text: str) -> None:
        """The last piece."""
        await self._send({"type": "http.response.body", "body": text.encode(), "more_body": False})


class Watched(Response):
    """Runs ``respond`` to its end, or until the client is gone: then it is cancelled, and with it the request in the engine.

    A client that does not take a piece for ``timeout_s`` counts as gone.
    """

    def __init__(self, respond: Callable[[Scope, Receive, Send], Awaitable[None]], timeout_s: float) -> None:
        super().__init__()
        self._respond, self._timeout_s = respond, timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        patient = _PatientSend(send, self._timeout_s)
        work = asyncio.ensure_future(self._respond(scope, receive, patient))
        gone = asyncio.ensure_future(_disconnected(receive))
        try:
            while not (work.done() or gone.done()) and (left := patient.left_s()) > 0:
                await asyncio.wait({work, gone}, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                work.result()
            else:
                why = "it closed the connection" if gone.done() else f"it took nothing for {self._timeout_s:g} s"
                log.info("client_gone", path=scope["path"], reason=why)
        finally:
            for task in (work, gone):
                task.cancel()
            await asyncio.gather(work, gone, return_exceptions=True)


class _PatientSend:
    """``send`` that knows since when it waits for the client. A timer for each piece would cost more than the piece."""

    def __init__(self, send: Send, timeout_s: float) -> None:
        self._send, self._timeout_s, self._since = send, timeout_s, 0.0

    async def __call__(self, message: Message) -> None:
        self._since = time.monotonic()
        await self._send(message)
        self._since = 0.0

    def left_s(self) -> float:
        """How long it is to wait at least before the client counts as gone; 0 or less: it does now."""
        return self._timeout_s - (time.monotonic() - self._since if self._since else 0.0)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
