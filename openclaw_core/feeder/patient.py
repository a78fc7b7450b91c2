"""The stock OpenAI client with our patience: what may pass by itself is waited for, everything else is said plainly."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import openai

from openclaw_core.feeder.backoff import KEY_STATUSES, PASSING_STATUSES, Backoff, Unavailable
from openclaw_core.feeder.errors import FeederError, TaskFailed

T = TypeVar("T")


class PatientClient:
    """An OpenAI-compatible API, over one pool of connections.

    A try ends after ``timeout_s`` seconds. A request that fails in a way that may pass is tried again, with growing pauses,
    for ``patience_s`` seconds. ``hasty``: so is one that got no answer in time, and one that met with an error of the server
    (500); an engine of ours that does not answer is not asked the same again, for it may still be at work.
    """

    def __init__(self, base_url: str, api_key: str, *, timeout_s: float, patience_s: float, hasty: bool = False) -> None:
        self.openai = openai.AsyncOpenAI(base_url=base_url, api_key=api_key, timeout=timeout_s, max_retries=0)
        self._base_url = base_url
        self._timeout_s = timeout_s
        self._backoff = Backoff(deadline_s=patience_s)
        self._hasty = hasty
        self._passing = PASSING_STATUSES | {408, 500} if hasty else PASSING_STATUSES

    async def aclose(self) -> None:
        """Close the connections."""
        await self.openai.close()

    async def request(self, what: str, call: Callable[[], Awaitable[T]]) -> T:
        """The result of ``call``, which uses ``openai``.

        Raises:
            TaskFailed: the request was refused, or could not be answered for too long.
            FeederError: the API does not accept the key.
        """
        try:
            return await self._backoff.run(what, lambda: self._attempt(what, call))
        except Unavailable as error:
            raise TaskFailed(
                f"{what} request to {self._base_url} failed for {self._backoff.deadline_s:g} s: {error}"
            ) from error

    async def _attempt(self, what: str, call: Callable[[], Awaitable[T]]) -> T:
        try:
            return await call()
        except openai.APIStatusError as error:
            if error.status_code in self._passing:
                raise Unavailable(error.message, _retry_after_s(error)) from error
            kind = FeederError if error.status_code in KEY_STATUSES else TaskFailed
            raise kind(f"{what} request to {self._base_url} was refused: {error.message}") from error
        except openai.APITimeoutError as error:
            reason = f"{what} request to {self._base_url} got no answer within {self._timeout_s:g} s"
            raise (Unavailable if self._hasty else TaskFailed)(reason) from error
        except openai.APIConnectionError as error:
            raise Unavailable(f"no connection: {error.__cause__ or error}") from error
        except openai.OpenAIError as error:
            raise TaskFailed(f"{what} request to {self._base_url} got an answer that cannot be read: {error}") from error


def _retry_after_s(error: openai.APIStatusError) -> float | None:
    """The header's seconds; its other form, a date, is not used by our gateway."""
    value = error.response.headers.get("retry-after", "")
    return float(value) if value.isdecimal() else None
