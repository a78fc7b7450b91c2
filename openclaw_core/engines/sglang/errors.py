"""What SGLang answers when something is wrong: its shapes, parsed into one type, and which engine error each one is.

The server has several of them, and none is documented as the only one:

| shape | body | where |
|---|---|---|
| native | ``{"error": {"message": ...}}`` | /generate and most native routes, status 400 |
| openai | ``{"object": "error", "message": ..., "type": ..., "code": ...}`` | validation (400), engine failures (500, 503) |
| control | ``{"success": false, "message": ...}`` | pause, weights, versions; status 400 |
| stream | ``data: {"error": {...}}`` inside a 200 stream | /generate with stream |
| gate | ``{"error": "..."}`` | /generate's type gate of newer versions, and 401 and 403 |

Unknown routes answer ``{"detail": ...}``, and some failures are plain text or an empty body. A request that the scheduler
gives up ends as a normal answer with status 200 whose ``finish_reason`` has the type ``abort``; its status_code is null for
an abort that was asked for, and an HTTP status where the request was refused.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Literal

from openclaw_core.engines.protocol import EngineAborted, EngineError, EngineFull, RequestRefused

Shape = Literal["native", "openai", "control", "stream", "gate", "detail", "text", "abort"]

_MAX_TEXT = 500
"""Characters of a body that is none of the known shapes."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One answer that says no. ``status`` is None for an abort that somebody asked for."""

    status: int | None
    message: str
    shape: Shape

    def error(self, what: str, *, begun: bool = False) -> EngineError:
        """The engine error that this is. ``what`` names server and request; ``begun``: tokens had come already."""
        text = f"{what}: {self.message}" + ("" if self.status is None else f" (status {self.status})")
        if self.status is None:
            return EngineAborted(text)
        if self.status == HTTPStatus.SERVICE_UNAVAILABLE and not begun:
            return EngineFull(text)
        if self.status == HTTPStatus.BAD_REQUEST:
            return RequestRefused(text)
        return EngineError(text)


def parse_body(status: int, body: bytes) -> Fault:
    """The fault in the body of an answer whose status is not 200."""
    try:
        parsed = json.loads(body)
    except ValueError:
        text = body.decode(errors="replace").strip()[:_MAX_TEXT]
        return Fault(status, text or HTTPStatus(status).phrase, "text")
    fault = parse_object(status, parsed)
    return fault if fault is not None else Fault(status, json.dumps(parsed)[:_MAX_TEXT], "text")


def parse_object(status: int, body: Any) -> Fault | None:
    """The fault that a parsed body states, None where it states none."""
    if not isinstance(body, dict):
        return None
    error = body.get("error")
    if isinstance(error, str):
        return Fault(status, error, "gate")
    if isinstance(error, dict):
        return Fault(status, str(error.get("message", error)), "native")
    if body.get("object") == "error":
        return Fault(status, str(body.get("message")), "openai")
    if body.get("success") is False:
        return Fault(status, str(body.get("message") or "no reason given"), "control")
    if "detail" in body:
        return Fault(status, str(body["detail"]), "detail")
    return None


def parse_piece(piece: Any) -> Fault | None:
    """The fault in one event of a stream: an ``error`` object. It carries a code in newer versions only; 400 without one."""
    if not isinstance(piece, dict) or "error" not in piece:
        return None
    error = piece["error"]
    if not isinstance(error, dict):
        return Fault(HTTPStatus.BAD_REQUEST, str(error), "stream")
    code = error.get("code")
    return Fault(code if isinstance(code, int) else HTTPStatus.BAD_REQUEST, str(error.get("message", error)), "stream")


def parse_abort(finish_reason: dict[str, Any]) -> Fault:
    """The fault in a finish_reason of the type ``abort``."""
    status = finish_reason.get("status_code")
    message = f"aborted: {finish_reason.get('message') or 'no reason given'}"
    return Fault(status if isinstance(status, int) else None, message, "abort")
