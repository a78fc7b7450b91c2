"""The gateway's OpenAPI document, made from the models that requests are checked against and responses are described by."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from openclaw_core import __version__
from openclaw_core.gateway.responses import (
    SENT,
    ChatCompletion,
    ChatCompletionChunk,
    ClosedSession,
    ErrorBody,
    Health,
    ModelList,
)
from openclaw_core.gateway.schema import ChatRequest, CloseRequest

_DESCRIPTION = """OpenAI's chat completions for the model that is being trained. Requests of a session (main turns) are
captured and trained on; the others (side turns) are answered and forgotten."""

_REQUEST_HEADERS = (
    ("X-Session-Id", "The session that a request belongs to. `metadata.session_id` says the same.", {"type": "string"}),
    (
        "X-Turn-Type",
        "main: captured, judged, trained on. side: answered and forgotten. Default: main where there is a session, else side.",
        {"type": "string", "enum": ["main", "side"]},
    ),
    ("X-Session-Done", "The turn that is asked for is the session's last.", {"type": "string", "enum": ["true", "false"]}),
)
_RESPONSE_HEADERS = {
    "x-openclaw-turn-type": "main or side: what this request was taken for.",
    "x-openclaw-turn-id": "The id under which a main turn is captured.",
    "x-openclaw-session-id": "The session of a main turn.",
    "x-openclaw-weight-version": "The version of the weights that the answer's first token was sampled with.",
    "x-openclaw-sampling": "Whose sampling parameters were used (pinned or client), and those that are not neutral.",
}
_ERRORS = {
    "400": "The request cannot be honoured as it is; `param` names the field.",
    "401": "No API key, or not a right one.",
    "404": "There is no such model.",
    "408": "The body did not arrive in time.",
    "413": "The body is larger than the limit.",
    "429": "The key has too many requests in flight.",
    "502": "The engine could not answer; nothing was captured.",
    "503": "The waiting room is full or the wait was too long; Retry-After says when to come back.",
}


def openapi_document(model: str) -> dict[str, Any]:
    """The document, OpenAPI 3.1; ``model`` is the only id that the field of that name may have."""
    _, definitions = models_json_schema(
        [(described, "validation") for described in (ChatRequest, CloseRequest, *SENT)],
        ref_template="#/components/schemas/{model}",
    )
    schemas: dict[str, Any] = definitions["$defs"]
    schemas["ChatRequest"]["properties"]["model"] |= {"enum": [model]}
    return {
        "openapi": "3.1.0",
        "info": {"title": "openclaw-rl gateway", "version": __version__, "description": _DESCRIPTION},
        "security": [{"key": []}],
        "paths": {
            "/v1/chat/completions": {"post": _chat()},
            "/v1/models": {"get": _operation("models", "The model that is served.", _json(ModelList), errors=("401",))},
            "/v1/sessions/{session_id}/close": {"post": _close()},
            "/healthz": {"get": _health()},
            "/metrics": {"get": _metrics()},
        },
        "components": {
            "schemas": dict(sorted(schemas.items())),
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


def _chat() -> dict[str, Any]:
    answer = _json(ChatCompletion) | {"text/event-stream": _event_stream()}
    chat = _operation("chat", "Answer a conversation.", answer, errors=tuple(_ERRORS))
    chat["responses"]["200"]["headers"] = {
        name: {"description": text, "schema": {"type": "string"}} for name, text in _RESPONSE_HEADERS.items()
    }
    return chat | {
        "parameters": [
            {"name": name, "in": "header", "required": False, "description": text, "schema": schema}
            for name, text, schema in _REQUEST_HEADERS
        ],
        "requestBody": {"required": True, "content": _json(ChatRequest)},
    }


def _event_stream() -> dict[str, Any]:
    """OpenAPI 3.1 has no word for events; each holds one chunk."""
    text = "With stream: true. Each event holds one chunk as JSON; the last one is [DONE]."
    return {"schema": {"type": "string", "description": text, "contentSchema": _ref(ChatCompletionChunk)}}


def _close() -> dict[str, Any]:
    close = _operation(
        "close",
        "End a session, with the user's last words or without.",
        _json(ClosedSession),
        errors=("400", "401", "408", "413"),
    )
    session = {"name": "session_id", "in": "path", "required": True, "schema": {"type": "string"}}
    return close | {"parameters": [session], "requestBody": {"required": False, "content": _json(CloseRequest)}}


def _health() -> dict[str, Any]:
    health = _operation("health", "Whether requests are answered.", _json(Health))
    health["responses"]["503"] = {"description": "The engine does not answer.", "content": _json(Health)}
    return health | {"security": []}


def _metrics() -> dict[str, Any]:
    text = {"text/plain": {"schema": {"type": "string"}}}
    return _operation("metrics", "Counters and gauges in Prometheus' text format.", text) | {"security": []}


def _operation(name: str, summary: str, content: dict[str, Any], errors: tuple[str, ...] = ()) -> dict[str, Any]:
    responses: dict[str, Any] = {"200": {"description": summary, "content": content}}
    responses |= {status: {"description": _ERRORS[status], "content": _json(ErrorBody)} for status in errors}
    return {"operationId": name, "summary": summary, "responses": responses}


def _json(model: type[BaseModel]) -> dict[str, Any]:
    return {"application/json": {"schema": _ref(model)}}


def _ref(model: type[BaseModel]) -> dict[str, Any]:
    return {"$ref": f"#/components/schemas/{model.__name__}"}
