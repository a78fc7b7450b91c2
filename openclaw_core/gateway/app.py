"""The HTTP side of the gateway: OpenAI's chat completions, and the two routes that a session needs besides."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import time
from collections.abc import AsyncIterator, Callable, Iterable

import structlog
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from starlette.exceptions import HTTPException

from openclaw_core.engines.protocol import EngineError
from openclaw_core.gateway.chat import ChatService, GatewayDeps, Tags
from openclaw_core.gateway.errors import ApiError, invalid, invalid_key, too_large
from openclaw_core.gateway.schema import ChatRequest, parse_chat, parse_close
from openclaw_core.gateway.sessions import SessionBook
from openclaw_core.gateway.wire import completion_events, completion_json, models_json
from openclaw_core.types import Turn, TurnType

__all__ = ["GatewayDeps", "create_app"]

log = structlog.get_logger()

_YES, _NO = ("1", "true", "yes", "on"), ("", "0", "false", "no", "off")


def create_app(deps: GatewayDeps, pending: Iterable[Turn] = ()) -> FastAPI:
    """The gateway as an ASGI application; its lifespan ends idle sessions.

    ``pending``: turns captured before a restart that nobody has reacted to yet, oldest first; their sessions go on.
    """
    gateway, started = deps.config.gateway, int(time.time())
    sessions = SessionBook(deps.sink, gateway.session_idle_s)
    sessions.restore(pending)
    chat = ChatService(deps, sessions)
    app = FastAPI(title="openclaw-rl gateway", lifespan=_sweeping(sessions), openapi_url=None)
    app.add_exception_handler(ApiError, _api_error)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(Exception, _server_error)

    @app.post("/v1/chat/completions")
    async def chat_completions(request: Request) -> Response:
        _check_key(request, deps.api_key)
        body, messages = parse_chat(await _read(request, gateway.max_body_bytes))
        reply = await chat.answer(body, messages, _tags(request, body))
        if not body.stream:
            return JSONResponse(completion_json(reply.completion), headers=reply.headers)
        include_usage = bool(body.stream_options and body.stream_options.include_usage)
        events = completion_events(reply.completion, include_usage=include_usage)
        return StreamingResponse(
            _stream(events), media_type="text/event-stream", headers={"Cache-Control": "no-cache", **reply.headers}
        )

    @app.get("/v1/models")
    async def models(request: Request) -> Response:
        _check_key(request, deps.api_key)
        return JSONResponse(models_json(deps.config.model.name, started))

    @app.post("/v1/sessions/{session_id:path}/close")
    async def close_session(session_id: str, request: Request) -> Response:
        _check_key(request, deps.api_key)
        message = parse_close(await _read(request, gateway.max_body_bytes))
        turn_id = sessions.close(session_id, message)
        return JSONResponse({"object": "session", "id": session_id, "closed": True, "last_turn": turn_id})

    @app.get("/healthz")
    async def healthz() -> Response:
        try:
            version = await deps.engine.version()
        except EngineError as error:
            log.error("engine_unhealthy", error=str(error))
            return JSONResponse({"accepting": False, "version": None, "queue": deps.room.queue}, status_code=503)
        return JSONResponse({"accepting": deps.room.accepting, "version": version, "queue": deps.room.queue})

    return app


def _sweeping(sessions: SessionBook) -> Callable[[FastAPI], contextlib.AbstractAsyncContextManager[None]]:
    """A lifespan during which idle sessions are ended."""

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        sweeper = asyncio.create_task(sessions.sweep_forever(), name="session-sweep")
        try:
            yield
        finally:
            sweeper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await sweeper

    return lifespan


async def _api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    log.info("request_refused", path=request.url.path, status=error.status, code=error.code, param=error.param)
    return JSONResponse(error.body(), status_code=error.status, headers=error.headers)


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    refused = ApiError(
        error.status_code, f"{request.method} {request.url.path}: {error.detail}.", headers=dict(error.headers or {})
    )
    return await _api_error(request, refused)


async def _server_error(request: Request, error: Exception) -> Response:
    """A fault of ours. Starlette raises it again behind this answer, so that it is logged with its traceback."""
    return await _api_error(
        request, ApiError(500, "The gateway failed on this request.", type="server_error", code="internal_error")
    )


async def _stream(events: Iterable[str]) -> AsyncIterator[str]:
    for event in events:
        yield event


def _check_key(request: Request, api_key: str) -> None:
    scheme, _, key = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not hmac.compare_digest(key.strip().encode(), api_key.encode()):
        raise invalid_key()


async def _read(request: Request, limit_bytes: int) -> bytes:
    """The body, read no further than the limit."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > limit_bytes:
            raise too_large(limit_bytes)
    return bytes(body)


def _tags(request: Request, body: ChatRequest) -> Tags:
    """Session, turn type and end of session: from the headers; the session also from ``metadata.session_id``."""
    session_id = request.headers.get("x-session-id") or (body.metadata or {}).get("session_id") or None
    named = request.headers.get("x-turn-type", "").strip().lower()
    if named not in ("", *TurnType):
        raise invalid(f"X-Turn-Type is {named!r}; allowed are main and side.", "X-Turn-Type")
    turn_type = TurnType(named) if named else TurnType.MAIN if session_id else TurnType.SIDE
    if turn_type is TurnType.MAIN and session_id is None:
        raise invalid("A main turn needs a session: send X-Session-Id or metadata.session_id.", "X-Session-Id")
    done = request.headers.get("x-session-done", "").strip().lower()
    if done not in (*_YES, *_NO):
        raise invalid(f"X-Session-Done is {done!r}; allowed are {', '.join((*_YES, *_NO[1:]))}.", "X-Session-Done")
    if done in _YES and session_id is None:
        raise invalid("X-Session-Done ends no session: send X-Session-Id or metadata.session_id with it.", "X-Session-Done")
    return Tags(turn_type, session_id, done in _YES)
