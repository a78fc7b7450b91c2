"""Tells an address of every change of a run's health: JSON for programs, or what Slack, Feishu and DingTalk show as a message.

Nobody to be reached is a warning in the log and never the run's fault.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import httpx
import structlog

from openclaw_core.config.health import HealthConfig
from openclaw_core.errors import OpenClawError
from openclaw_core.health.policy import Health

log = structlog.get_logger(__name__)

ATTEMPTS = 4
TIMEOUT_S = 10.0
"""Of one attempt."""
WAIT_S = 1.0
"""Before the second attempt; twice as long before each further one."""
FINISH_S = 15.0
"""How long the end of the service waits for messages on their way."""


class Refused(OpenClawError):
    """The address does not take the message, and would not take it later."""


class Webhook:
    """``url`` holds a secret: it is in no message and no log. Messages arrive in the order in which they were told."""

    def __init__(self, url: str, config: HealthConfig, run_id: str) -> None:
        self._url, self._format, self._run_id = url, config.webhook_format, run_id
        self._order = asyncio.Lock()
        self._sending: set[asyncio.Task[None]] = set()

    def tell(self, health: Health) -> None:
        """Send it by and by."""
        task = asyncio.create_task(self._send(health))
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)

    async def finish(self) -> None:
        """Wait for what is on its way, for a while."""
        if self._sending:
            _, late = await asyncio.wait(self._sending, timeout=FINISH_S)
            for task in late:
                task.cancel()

    async def _send(self, health: Health) -> None:
        body, step = message(self._run_id, health, self._format), health.verdict.step
        async with self._order, httpx.AsyncClient(timeout=TIMEOUT_S) as client:
            for attempt in range(1, ATTEMPTS + 1):
                try:
                    await self._post(client, body)
                    log.info("health_told", step=step, state=health.verdict.state)
                    return
                except Refused as error:
                    log.warning("health_not_told", step=step, reason=f"{error}; look at OPENCLAW_HEALTH_WEBHOOK")
                    return
                except httpx.HTTPError as error:
                    reason = f"{type(error).__name__} (attempt {attempt} of {ATTEMPTS})"
                    log.warning("health_not_told", step=step, reason=reason)
                if attempt < ATTEMPTS:
                    await asyncio.sleep(WAIT_S * 2 ** (attempt - 1))

    async def _post(self, client: httpx.AsyncClient, body: Mapping[str, Any]) -> None:
        """Raises httpx.HTTPError where another attempt may help, else Refused."""
        try:
            answer = await client.post(self._url, json=body)
        except (httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
            raise Refused(f"the address is no http(s) address ({type(error).__name__})") from error
        if answer.is_server_error or answer.status_code == 429:
            answer.raise_for_status()
        if not answer.is_success:
            raise Refused(f"HTTP {answer.status_code}")
        if self._format in ("feishu", "dingtalk"):
            _check_code(answer)


def message(run_id: str, health: Health, form: str) -> dict[str, Any]:
    """The body of the request, in one of the forms of health.webhook_format."""
    if form == "json":
        return {"run": run_id, **health.as_json()}
    text = in_words(run_id, health)
    return {
        "slack": {"text": text},
        "feishu": {"msg_type": "text", "content": {"text": text}},
        "dingtalk": {"msgtype": "text", "text": {"content": text}},
    }[form]


def in_words(run_id: str, health: Health) -> str:
    """For people: the state, then a line for each finding, new ones marked."""
    verdict, new = health.verdict, {finding.rule for finding in health.raised}
    lines = [f"{'new: ' if finding.rule in new else ''}{finding.state}: {finding}" for finding in verdict.findings]
    then = {"pause": "the run is held", "stop": "the run is stopped", "lower_w_opd": "w_opd is lowered"}.get(
        health.action or ""
    )
    head = f"openclaw run {run_id} is {verdict.state} after step {verdict.step}" + (f"; {then}" if then else "")
    return "\n".join([head, *lines])


def _check_code(answer: httpx.Response) -> None:
    """Feishu and DingTalk answer 200 to what they refuse, with a code other than 0 in the body."""
    try:
        body = answer.json()
        code, told = body.get("errcode", body.get("code", 0)), body.get("errmsg", body.get("msg", ""))
    except (ValueError, AttributeError) as error:
        raise Refused("its answer is not the service's: is health.webhook_format right?") from error
    if code != 0:
        raise Refused(f"code {code}: {told}")
