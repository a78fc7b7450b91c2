"""Errors as they go over the wire: OpenAI's shape, to the letter."""

from __future__ import annotations

import pytest

from openclaw_core.gateway.errors import (
    ApiError,
    context_overflow,
    engine_failed,
    held_too_long,
    invalid,
    invalid_key,
    slow_client,
    too_large,
    too_many_requests,
    unknown_model,
)

REQUEST, SERVER = "invalid_request_error", "server_error"
LONGEST = "This model's maximum context length is 100 tokens. However, "

GOLDEN: list[tuple[ApiError, int, str, str, str | None, str | None]] = [
    (invalid("No.", "n"), 400, "No.", REQUEST, "n", "invalid_value"),
    (invalid("No."), 400, "No.", REQUEST, None, "invalid_value"),
    (
        context_overflow(100, 90, 20),
        400,
        f"{LONGEST}you requested 110 tokens (90 in the messages, 20 in the completion). "
        "Please reduce the length of the messages or completion.",
        REQUEST,
        "messages",
        "context_length_exceeded",
    ),
    (
        context_overflow(100, 101, 1),
        400,
        f"{LONGEST}your messages resulted in 101 tokens. Please reduce the length of the messages.",
        REQUEST,
        "messages",
        "context_length_exceeded",
    ),
    (
        invalid_key(),
        401,
        "Incorrect or missing API key. Send `Authorization: Bearer <key>`.",
        REQUEST,
        None,
        "invalid_api_key",
    ),
    (
        unknown_model("gpt-4", "tiny"),
        404,
        "The model `gpt-4` does not exist here; this endpoint serves `tiny`.",
        REQUEST,
        "model",
        "model_not_found",
    ),
    (slow_client(60.0), 408, "The request body did not arrive within 60 s.", REQUEST, None, "request_timeout"),
    (too_large(4000), 413, "The request body is larger than 4000 bytes.", REQUEST, None, "request_too_large"),
    (
        too_many_requests("ann", 8),
        429,
        "The key named 'ann' has 8 requests in flight already; wait for one of them.",
        "rate_limit_error",
        None,
        "rate_limit_exceeded",
    ),
    (engine_failed("Broken."), 502, "Broken.", SERVER, None, "engine_error"),
    (held_too_long("Full."), 503, "Full.", SERVER, None, "overloaded"),
]


@pytest.mark.parametrize(("error", "status", "message", "kind", "param", "code"), GOLDEN, ids=lambda value: str(value)[:30])
def test_an_error_in_openais_shape(
    error: ApiError, status: int, message: str, kind: str, param: str | None, code: str | None
) -> None:
    assert error.status == status
    assert error.body() == {"error": {"message": message, "type": kind, "param": param, "code": code}}


@pytest.mark.parametrize("error", [too_many_requests("ann", 8), held_too_long("Full.")], ids=str)
def test_a_client_that_may_come_back_is_told_when(error: ApiError) -> None:
    assert int(error.headers["Retry-After"]) > 0
