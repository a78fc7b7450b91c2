"""The HTTP side of the gateway: OpenAI's chat completions, and the routes that a session and an operator need besides."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Iterable

import structlog
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException
from starlette.types import Receive, Scope, Send

from openclaw_core.engines.protocol import EngineError
from openclaw_core.gateway.chat import ChatService, GatewayDeps, Tags
from openclaw_core.gateway.clients import Keys, Watched, Writer, read_body
from openclaw_core.gateway.counts import Found
from openclaw_core.gateway.errors import ApiError, invalid
from openclaw_core.gateway.logprobs import TokenTexts
from openclaw_core.gateway.metrics import CONTENT_TYPE, CountRequests, GatewayMetrics, Reading
from openclaw_core.gateway.openapi import openapi_document
from openclaw_core.gateway.reply import Reply
from openclaw_core.gateway.schema import ChatRequest, parse_chat, parse_close
from openclaw_core.gateway.sessions import SessionBook
from openclaw_core.gateway.wire import DONE, Events, completion_json, error_event, models_json
from openclaw_core.types import Turn, TurnType

__all__ = ["GatewayDeps", "create_app"]

log = structlog.get_logger()

KEEP_ALIVE_S = 75
"""How long the server keeps an idle connection: longer than clients do (httpx 5 s, aiohttp 15 s), or it may close one in the
moment in which its client sends the next request, which then fails."""

_YES, _NO = ("1", "true", "yes", "on"), ("", "0", "false", "no", "off")


def create_app(deps: GatewayDeps, pending: Iterable[Turn] = (), readings: Iterable[Reading] = ()) -> FastAPI:
    """The gateway as an ASGI application; its lifespan ends idle sessions. ``app.state.sessions`` are its sessions.

    ``pending``: turns captured before a restart that nobody has reacted to yet, oldest first; their sessions go on.
    ``readings``: more numbers for /metrics, of the parts around the gateway.
    """
    gateway, model, started = deps.config.gateway, deps.config.model.served_as, int(time.time())
    inference = gateway.session_inference == "on"
    sessions = SessionBook(deps.sink, gateway.session_idle_s, inference=inference, max_sessions=gateway.max_sessions)
    sessions.restore(pending)
    metrics = GatewayMetrics((*_readings(deps, sessions), *readings))
    chat = ChatService(deps, sessions, metrics)
    keys, texts = Keys(deps.api_keys, gateway), TokenTexts(deps.renderer.tokenizer)
    app = FastAPI(title="openclaw-rl gateway", lifespan=_sweeping(sessions), openapi_url=None, docs_url=None, redoc_url=None)
    app.state.sessions = sessions
    app.add_middleware(CountRequests, metrics=metrics)
    app.add_exception_handler(ApiError, _api_error)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(Exception, _server_error)

    @app.post("/v1/chat/completions")
    async def chat_completions(request: Request) -> Response:
        key = keys.check(request)
        body, messages = parse_chat(await read_body(request, gateway), gateway.max_messages)
        tags = _tags(request, body)

        async def respond(scope: Scope, receive: Receive, send: Send) -> None:
            with keys.one_more(key):
                async with chat.serve(body, messages, tags) as reply:
                    shown = texts if body.logprobs else None
                    if body.stream:
                        await _stream(Writer(send), reply, body, shown)
                    else:
                        choices = await reply.complete()
                        content = completion_json(reply.envelope, choices, reply.usage, shown)
                        await JSONResponse(content, headers=reply.headers)(scope, receive, send)

        return Watched(respond, gateway.client_timeout_s)

    @app.get("/v1/models")
    async def models(request: Request) -> Response:
        keys.check(request)
        return JSONResponse(models_json(model, started))

    @app.post("/v1/sessions/{session_id:path}/close")
    async def close_session(session_id: str, request: Request) -> Response:
        keys.check(request)
        message = parse_close(await read_body(request, gateway))
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

    @app.get("/metrics")
    async def prometheus() -> Response:
        return Response(metrics.page(), media_type=CONTENT_TYPE)

    @app.get("/openapi.json")
    async def openapi() -> Response:
        return JSONResponse(openapi_document(model))

    return app


def _readings(deps: GatewayDeps, sessions: SessionBook) -> list[Reading]:
    room, counts = deps.room, sessions.counts
    return [
        Reading("openclaw_gateway_queue", "Requests in the waiting room.", lambda: {"": room.queue}),
        Reading("openclaw_gateway_in_flight", "Requests being answered.", lambda: {"": room.in_flight}),
        Reading("openclaw_gateway_sessions", "Open sessions.", lambda: {"": len(sessions)}),
        Reading(
            "openclaw_gateway_requests_by_session",
            "Requests, by how their session was found.",
            lambda: {found.value: counts.requests[found] for found in Found},
            "found",
            counts_up=True,
        ),
        Reading(
            "openclaw_gateway_turns_dropped",
            "Turns that got no next state, by reason.",
            lambda: {reason.value: number for reason, number in counts.drops.items()},
            "reason",
            counts_up=True,
        ),
    ]


async def _stream(writer: Writer, reply: Reply, body: ChatRequest, texts: TokenTexts | None) -> None:
    """Send a reply as server-sent events. What fails after the first byte is an event too: the status has gone out."""
    include_usage = bool(body.stream_options and body.stream_options.include_usage)
    events = Events(reply.envelope, include_usage=include_usage, texts=texts)
    await writer.begin({"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache", **reply.headers})
    try:
        for index, choice in enumerate(reply.choices):
            await writer.write(events.role(index))
            async for delta in choice.deltas():
                await writer.write(events.delta(index, delta))
            assert choice.finished is not None
            await writer.write(events.end(index, choice.finished))
        if include_usage:
            await writer.write(events.usage(reply.usage))
    except ApiError as error:
        log.info("stream_failed", completion=reply.envelope.completion_id, status=error.status, code=error.code)
        await writer.write(error_event(error.body()))
    await writer.end(DONE)


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


def _tags(request: Request, body: ChatRequest) -> Tags:
    """Session, turn type and end of session: from the headers; the session also from ``metadata.session_id``."""
    named = request.headers.get("x-turn-type", "").strip().lower()
    if named not in ("", *TurnType):
        raise invalid(f"X-Turn-Type is {named!r}; allowed are main and side.", "X-Turn-Type")
    done = request.headers.get("x-session-done", "").strip().lower()
    if done not in (*_YES, *_NO):
        raise invalid(f"X-Session-Done is {done!r}; allowed are {', '.join((*_YES, *_NO[1:]))}.", "X-Session-Done")
    return Tags(
        TurnType(named) if named else None,
        header=request.headers.get("x-session-id"),
        metadata=(body.metadata or {}).get("session_id"),
        done=done in _YES,
    )
