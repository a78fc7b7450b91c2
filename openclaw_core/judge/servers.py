"""HTTP to the judge's servers: one pooled client, the least busy server first, every failure a JudgeError that names it."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Any

import httpx

from openclaw_core.engines.sglang.errors import parse_body
from openclaw_core.judge.client import JudgeDenied, JudgeError, JudgeOverflow, JudgeRefused

CONNECT_S = 10.0
REST_S = 15.0
"""How long a server that could not be reached is asked only if there is no other."""
_TOO_LONG = ("context_length_exceeded", "context length", "maximum context")


@dataclass(slots=True)
class Server:
    """One base URL; ``busy``: calls in flight there; ``rests_until``: on the clock of ``Servers``."""

    url: str
    busy: int = 0
    rests_until: float = 0.0


class Servers:
    """The servers at ``base_urls``. ``api_key`` goes with every call, and nowhere else.

    ``trust_env``: whether the machine's proxies hold; they do for an endpoint on the Internet, not for our own engines.
    """

    def __init__(
        self,
        base_urls: tuple[str, ...],
        *,
        api_key: str | None,
        trust_env: bool,
        headers: Mapping[str, str] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._servers = [Server(url.rstrip("/")) for url in base_urls]
        self._clock = clock
        self._http = httpx.AsyncClient(
            headers={**(headers or {}), **({"Authorization": f"Bearer {api_key}"} if api_key else {})},
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=256),
            trust_env=trust_env,
        )

    async def post(self, path: str, body: Mapping[str, Any], deadline_s: float) -> dict[str, Any]:
        """The JSON object that a server answers with.

        Raises:
            JudgeDenied: 401 or 403. JudgeOverflow: too long. JudgeRefused: another 4xx that will not pass by itself.
            JudgeError: not reached, no answer within ``deadline_s``, busy, broken, or no JSON object.
        """
        with self._least_busy() as server:
            return await self._call(server, "POST", path, body, deadline_s)

    async def ask_each(self, path: str, deadline_s: float) -> list[dict[str, Any]]:
        """What every server answers to a GET, those that cannot be asked left out. Raises JudgeError where none can."""
        calls = (self._call(server, "GET", path, None, deadline_s) for server in self._servers)
        replies = await asyncio.gather(*calls, return_exceptions=True)
        found: list[dict[str, Any]] = []
        faults: list[JudgeError] = []
        for reply in replies:
            if isinstance(reply, JudgeError):
                faults.append(reply)
            elif isinstance(reply, BaseException):
                raise reply
            else:
                found.append(reply)
        if not found:
            raise faults[0]
        return found

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    @contextlib.contextmanager
    def _least_busy(self) -> Generator[Server]:
        now = self._clock()
        server = min(self._servers, key=lambda each: (max(0.0, each.rests_until - now), each.busy))
        server.busy += 1
        try:
            yield server
        finally:
            server.busy -= 1

    async def _call(
        self, server: Server, method: str, path: str, body: Mapping[str, Any] | None, deadline_s: float
    ) -> dict[str, Any]:
        url, timeout = server.url + path, httpx.Timeout(deadline_s, connect=min(CONNECT_S, deadline_s), pool=None)
        try:
            response = await self._http.request(method, url, json=body, timeout=timeout)
        except httpx.TimeoutException as error:
            raise self._unreached(server, f"{url} did not answer within {deadline_s:g} s") from error
        except httpx.HTTPError as error:
            raise self._unreached(server, f"{url} cannot be reached: {str(error) or type(error).__name__}") from error
        if response.status_code >= HTTPStatus.INTERNAL_SERVER_ERROR:
            server.rests_until = self._clock() + REST_S
        if response.status_code != HTTPStatus.OK:
            raise refusal(url, response)
        try:
            parsed: Any = response.json()
        except ValueError:
            raise JudgeError(f"{url} answered with something that is no JSON: {response.text[:200]!r}") from None
        if not isinstance(parsed, dict):
            raise JudgeError(f"{url} answered with JSON that is no object: {response.text[:200]!r}")
        return parsed  # pyright: ignore[reportUnknownVariableType]

    def _unreached(self, server: Server, message: str) -> JudgeError:
        server.rests_until = self._clock() + REST_S
        return JudgeError(message)


def refusal(url: str, response: httpx.Response) -> JudgeError:
    """What an answer other than 200 means, in the shape of whichever server wrote it."""
    status = response.status_code
    cause = f"{url} answered {status}: {parse_body(status, response.content).message}"
    if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        return JudgeDenied(f"{cause}; set OPENCLAW_JUDGE_API_KEY to a key that this judge takes, and start the run again")
    if status in (HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.CONFLICT, HTTPStatus.TOO_EARLY, HTTPStatus.TOO_MANY_REQUESTS):
        return JudgeError(cause, retry_after_s(response.headers.get("retry-after")))
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return JudgeError(cause, retry_after_s(response.headers.get("retry-after")))
    too_long = status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE or any(mark in response.text.lower() for mark in _TOO_LONG)
    if too_long:
        return JudgeOverflow(f"{cause}; lower judge.max_tokens, or use a judge with a longer context")
    if status == HTTPStatus.NOT_FOUND:
        return JudgeRefused(f"{cause}; judge.base_urls or judge.model is not right for this server")
    return JudgeRefused(f"{cause}; mend judge.model, judge.body, judge.max_tokens or judge.temperature to what it takes")


def retry_after_s(value: str | None) -> float | None:
    """Seconds of a Retry-After header, which holds a number or a date; None where it is absent or neither."""
    if value is None:
        return None
    try:
        return max(0.0, float(value))
    except ValueError:
        pass
    try:
        date = parsedate_to_datetime(value)
    except ValueError:
        return None
    if date.tzinfo is None:
        date = date.replace(tzinfo=UTC)
    return max(0.0, (date - datetime.now(UTC)).total_seconds())
