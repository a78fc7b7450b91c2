"""HTTP to one SGLang server: a pooled client, a deadline for every call, every failure an EngineError that names the server."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass
from typing import Any

import httpx

from openclaw_core.engines.protocol import EngineError
from openclaw_core.engines.sglang.errors import Fault, parse_body, parse_object

_CONNECT_S = 10.0


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer to a control call: ``body`` is the parsed JSON, or the text where it is none; ``fault`` None on success."""

    status: int
    body: Any
    fault: Fault | None


class Http:
    """Connections to the server at ``base_url``, kept alive and without a limit on their number: the gateway admits.

    ``api_key``: what the server was started with; its control routes take the same key.
    """

    def __init__(self, base_url: str, *, api_key: str | None = None) -> None:
        self.base_url = base_url.rstrip("/")
        self._client = httpx.AsyncClient(
            base_url=self.base_url,
            headers={"Authorization": f"Bearer {api_key}"} if api_key else {},
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=256),
            # The environment's proxies are not for an engine.
            trust_env=False,
        )

    async def call(self, method: str, path: str, deadline_s: float, *, body: Any = None) -> Reply:
        """One request; a refusal is in ``Reply.fault``. Raises EngineError: no answer, or none within ``deadline_s``."""
        try:
            response = await self._client.request(method, path, json=body, timeout=_timeout(deadline_s))
        except httpx.TimeoutException:
            raise EngineError(f"{self.base_url}{path} did not answer within {deadline_s:g} s") from None
        except httpx.HTTPError as error:
            raise EngineError(f"{self.base_url}{path} cannot be reached: {describe(error)}") from error
        parsed = _parsed(response)
        if response.status_code != httpx.codes.OK:
            return Reply(response.status_code, parsed, parse_body(response.status_code, response.content))
        return Reply(response.status_code, parsed, parse_object(response.status_code, parsed))

    @contextlib.asynccontextmanager
    async def events(self, path: str, body: Any, silence_s: float) -> AsyncIterator[AsyncIterator[Any]]:
        """The JSON events of a streaming POST. The connection closes with the block, which the server notices.

        Raises EngineError, as ``Fault.error`` has it: refused, unreachable, or silent for ``silence_s``.
        """
        what = f"{self.base_url}{path}"
        try:
            async with self._client.stream("POST", path, json=body, timeout=_timeout(silence_s)) as response:
                if response.status_code != httpx.codes.OK:
                    raise parse_body(response.status_code, await response.aread()).error(what)
                async with contextlib.aclosing(_events(response, what)) as pieces:
                    yield pieces
        except httpx.TimeoutException:
            raise EngineError(f"{what} sent nothing for {silence_s:g} s") from None
        except httpx.HTTPError as error:
            raise EngineError(f"{what} broke off: {describe(error)}") from error

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()


def describe(error: Exception) -> str:
    """An httpx error in words: many have no message of their own."""
    return str(error) or type(error).__name__


async def _events(response: httpx.Response, what: str) -> AsyncGenerator[Any]:
    """Events end with ``[DONE]``; a connection that closes before it has lost something."""
    async for line in response.aiter_lines():
        if not line.startswith("data:"):
            continue
        data = line[len("data:") :].strip()
        if data == "[DONE]":
            return
        try:
            yield json.loads(data)
        except ValueError as error:
            raise EngineError(f"{what} sent an event that is no JSON ({error}): {data[:200]!r}") from None
    raise EngineError(f"{what} closed the stream before its end")


def _timeout(seconds: float) -> httpx.Timeout:
    return httpx.Timeout(seconds, connect=min(_CONNECT_S, seconds), pool=None)


def _parsed(response: httpx.Response) -> Any:
    try:
        return response.json()
    except ValueError:
        return response.text
