"""The feeder's view of the gateway: the stock OpenAI client, with our headers and our patience."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import openai

from openclaw_core.config.schema import RunConfig
from openclaw_core.feeder.backoff import KEY_STATUSES, PASSING_STATUSES, Backoff, Unavailable
from openclaw_core.feeder.errors import FeederError, TaskFailed
from openclaw_core.types import FinishReason, Message, TurnType

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer of the assistant."""

    text: str
    truncated: bool
    """It hit the length limit."""
    version: int | None
    """The weights that gave it, where the gateway says so."""


class GatewayClient:
    """Chat requests and the end of sessions, against any OpenAI-compatible gateway.

    ``base_url`` ends in ``/v1``. A request may be held for minutes while the policy trains, so one try waits for the
    gateway's own longest hold and the engine's deadline; a gateway that is away is asked again for ``start_deadline_s``
    more.
    """

    def __init__(self, config: RunConfig, base_url: str, api_key: str) -> None:
        self._model = config.model.name
        self._base_url = base_url
        self._timeout_s = config.rollout.hold_max_s + config.engine.deadline_s
        self._backoff = Backoff(deadline_s=self._timeout_s + config.cluster.start_deadline_s)
        self._openai = openai.AsyncOpenAI(base_url=base_url, api_key=api_key, timeout=self._timeout_s, max_retries=0)

    async def aclose(self) -> None:
        """Close the connections."""
        await self._openai.close()

    async def chat(
        self, messages: Sequence[Message], turn_type: TurnType, session_id: str | None = None, **sampling: Any
    ) -> Answer:
        """One answer to a conversation; ``sampling`` are further fields of the request.

        Raises:
            TaskFailed: the gateway refused the request, or stayed away for too long.
            FeederError: the gateway does not accept the key.
        """
        headers = {"X-Turn-Type": turn_type.value}
        if session_id is not None:
            headers["X-Session-Id"] = session_id
        create = self._openai.chat.completions.with_raw_response.create
        body = {"model": self._model, "messages": list(messages), **sampling}

        async def ask() -> Answer:
            raw = await create(**cast(Any, body), extra_headers=headers)
            choice = raw.parse().choices[0]
            version = raw.headers.get("x-openclaw-weight-version")
            return Answer(
                text=choice.message.content or "",
                truncated=choice.finish_reason == FinishReason.LENGTH,
                version=None if version is None else int(version),
            )

        return await self._request("chat", ask)

    async def close_session(self, session_id: str, message: str | None) -> None:
        """End a session, with the person's last word if there is one. No answer is generated. Raises as ``chat`` does."""
        body = {"message": None if message is None else {"role": "user", "content": message}}
        await self._request("close", lambda: self._openai.post(f"/sessions/{session_id}/close", cast_to=object, body=body))

    async def _request(self, what: str, call: Callable[[], Awaitable[T]]) -> T:
        async def attempt() -> T:
            try:
                return await call()
            except openai.APIStatusError as error:
                if error.status_code in PASSING_STATUSES:
                    raise Unavailable(error.message, _retry_after_s(error)) from error
                kind = FeederError if error.status_code in KEY_STATUSES else TaskFailed
                raise kind(f"{what} request to {self._base_url} was refused: {error.message}") from error
            except openai.APITimeoutError as error:
                raise TaskFailed(f"{what} request to {self._base_url} got no answer within {self._timeout_s:g} s") from error
            except openai.APIConnectionError as error:
                raise Unavailable(f"no connection: {error.__cause__ or error}") from error
            except openai.OpenAIError as error:
                raise TaskFailed(f"{what} request to {self._base_url} got an answer that cannot be read: {error}") from error

        try:
            return await self._backoff.run(what, attempt)
        except Unavailable as error:
            raise TaskFailed(
                f"{what} request to {self._base_url} failed for {self._backoff.deadline_s:g} s: {error}"
            ) from error


def _retry_after_s(error: openai.APIStatusError) -> float | None:
    """The header's seconds; its other form, a date, is not used by our gateway."""
    value = error.response.headers.get("retry-after", "")
    return float(value) if value.isdecimal() else None
