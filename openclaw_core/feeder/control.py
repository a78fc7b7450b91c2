"""The feeder's view of the training service: is it ready, which step is next, and how an answer was found."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Literal, TypeVar

import httpx
from pydantic import BaseModel, ValidationError

from openclaw_core.feeder.backoff import KEY_STATUSES, PASSING_STATUSES, Backoff, Unavailable
from openclaw_core.feeder.errors import FeederError, TaskFailed
from openclaw_core.feeder.problems import Problem
from openclaw_core.feeder.simulator import Reaction

T = TypeVar("T")

TIMEOUT_S = 30.0


class ServiceStatus(BaseModel):
    """What the feeder needs of ``GET /status``."""

    state: Literal["starting", "ready", "finished", "failed"]
    error: str | None
    problems: int
    """How many problems have been given out so far, as far as feeders have told."""


class ControlClient:
    """Speaks Bookkeeper by the control API; while the service is away each call is tried again for ``patience_s`` seconds."""

    def __init__(self, url: str, token: str, patience_s: float) -> None:
        self._url = url
        self._backoff = Backoff(deadline_s=patience_s)
        self._http = httpx.AsyncClient(base_url=url, headers={"Authorization": f"Bearer {token}"}, timeout=TIMEOUT_S)

    async def aclose(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def status(self) -> ServiceStatus:
        """The service's state. Raises FeederError where it does not answer for the client's patience."""
        return await self._patiently("status", self._status)

    async def begin(self) -> int:
        """How many problems have been given out, once the service serves or has finished. Raises FeederError."""

        async def ready() -> ServiceStatus:
            status = await self._status()
            if status.state in ("starting", "failed"):
                raise Unavailable(f"the service is {status.state}" + (f": {status.error}" if status.error else ""))
            return status

        return (await self._patiently("status", ready)).problems

    async def finished(self) -> bool:
        """The service has done its steps. Raises FeederError as ``status`` does."""
        return (await self.status()).state == "finished"

    def given(self, problem: Problem) -> None:
        """The service takes it from the outcomes."""

    def over(self, problem: Problem) -> None:
        """The service takes it from the outcomes."""

    async def outcome(self, session_id: str, persona: str, reaction: Reaction, first: bool, problem: Problem) -> None:
        """Report how a persona found an answer. Raises TaskFailed or FeederError.

        The problem's answer goes along so that hints which quote it are refused; it goes to no model.
        """
        body = {
            "persona": persona,
            "satisfied": reaction.satisfied,
            "relevant": reaction.relevant,
            "first": first,
            "problem": problem.number,
            "ground_truth": problem.answer,
        }

        async def post() -> None:
            await self._send("POST", f"/sessions/{session_id}/outcome", json=body)

        await self._patiently("outcome", post)

    async def _status(self) -> ServiceStatus:
        response = await self._send("GET", "/status")
        try:
            return ServiceStatus.model_validate_json(response.content)
        except ValidationError as error:
            raise FeederError(f"{self._url}/status is not the control API of a training service: {error}") from error

    async def _patiently(self, what: str, call: Callable[[], Awaitable[T]]) -> T:
        try:
            return await self._backoff.run(what, call)
        except Unavailable as error:
            raise FeederError(
                f"the training service at {self._url} was not there for {self._backoff.deadline_s:g} s: {error}"
            ) from error

    async def _send(self, method: str, path: str, json: dict[str, Any] | None = None) -> httpx.Response:
        try:
            response = await self._http.request(method, path, json=json)
        except httpx.TransportError as error:
            raise Unavailable(f"no connection: {error!r}") from error
        if response.is_success:
            return response
        if response.status_code in PASSING_STATUSES:
            raise Unavailable(f"{response.status_code}: {response.text[:200]}")
        kind = FeederError if response.status_code in KEY_STATUSES else TaskFailed
        raise kind(f"{method} {self._url}{path} was refused with {response.status_code}: {response.text[:200]}")
