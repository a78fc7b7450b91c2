"""The feeder's view of the gateway: the stock OpenAI client, with our headers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import openai
import structlog

from openclaw_core.config.schema import RunConfig
from openclaw_core.feeder.patient import PatientClient
from openclaw_core.types import FinishReason, Message, TurnType

log = structlog.get_logger()


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
        self._model = config.model.served_as
        timeout_s = config.rollout.hold_max_s + config.engine.deadline_s
        patience_s = timeout_s + config.cluster.start_deadline_s
        self._client = PatientClient(base_url, api_key, timeout_s=timeout_s, patience_s=patience_s)
        self._knows_sessions = True

    async def aclose(self) -> None:
        """Close the connections."""
        await self._client.aclose()

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
        create = self._client.openai.chat.completions.with_raw_response.create
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

        return await self._client.request("chat", ask)

    async def close_session(self, session_id: str, message: str | None) -> None:
        """End a session, with the person's last word if there is one. No answer is generated. Raises as ``chat`` does.

        A gateway of another make has no sessions to end; that is logged once, and its sessions are left as they are.
        """
        if not self._knows_sessions:
            return
        body = {"message": None if message is None else {"role": "user", "content": message}}

        async def close() -> bool:
            try:
                await self._client.openai.post(f"/sessions/{session_id}/close", cast_to=object, body=body)
            except openai.APIStatusError as error:
                if error.status_code in (404, 405):  # ours ends sessions that it does not know, too
                    return False
                raise
            return True

        self._knows_sessions = await self._client.request("close", close)
        if not self._knows_sessions:
            log.warning("gateway_knows_no_sessions", effect="the last words of people are not sent")
