"""Errors in OpenAI's shape: what a client library knows how to show."""

from __future__ import annotations

from typing import Any

RETRY_AFTER_S = 10
"""What a client that was turned away is told to wait."""


class ApiError(Exception):
    """A request that is answered with an error. ``param`` names the field at fault, ``code`` is for programs."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        type: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.type = type
        self.param = param
        self.code = code
        self.headers = headers or {}

    def body(self) -> dict[str, Any]:
        """The JSON body."""
        return {"error": {"message": self.message, "type": self.type, "param": self.param, "code": self.code}}


def invalid(message: str, param: str | None = None, code: str | None = "invalid_value") -> ApiError:
    """400: the request itself is wrong."""
    return ApiError(400, message, param=param, code=code)


def invalid_key() -> ApiError:
    """401: no key, or not the right one. The key that was sent is not repeated."""
    return ApiError(401, "Incorrect or missing API key. Send `Authorization: Bearer <key>`.", code="invalid_api_key")


def unknown_model(name: str, served: str) -> ApiError:
    """404: another model was asked for."""
    return ApiError(
        404, f"The model `{name}` does not exist here; this endpoint serves `{served}`.", param="model", code="model_not_found"
    )


def too_large(limit_bytes: int) -> ApiError:
    """413: the body is over the limit."""
    return ApiError(413, f"The request body is larger than {limit_bytes} bytes.", code="request_too_large")


def context_overflow(context: int, prompt: int, answer: int) -> ApiError:
    """400, in OpenAI's words: clients recognise the code, or the words, and compact their history."""
    if prompt > context:
        told = f"your messages resulted in {prompt} tokens. Please reduce the length of the messages."
    else:
        told = (
            f"you requested {prompt + answer} tokens ({prompt} in the messages, {answer} in the completion). "
            "Please reduce the length of the messages or completion."
        )
    return ApiError(
        400,
        f"This model's maximum context length is {context} tokens. However, {told}",
        param="messages",
        code="context_length_exceeded",
    )


def slow_client(limit_s: float) -> ApiError:
    """408: the body did not arrive in time."""
    return ApiError(408, f"The request body did not arrive within {limit_s:g} s.", code="request_timeout")


def too_many_requests(key: str, limit: int) -> ApiError:
    """429: one key has too many requests in flight; the key is named, not shown."""
    return ApiError(
        429,
        f"The key named {key!r} has {limit} requests in flight already; wait for one of them.",
        type="rate_limit_error",
        code="rate_limit_exceeded",
        headers={"Retry-After": "1"},
    )


def held_too_long(message: str) -> ApiError:
    """503: a bound of the waiting room was passed; the client may try again."""
    return ApiError(503, message, type="server_error", code="overloaded", headers={"Retry-After": str(RETRY_AFTER_S)})


def engine_failed(message: str) -> ApiError:
    """502: the engine behind the gateway could not answer."""
    return ApiError(502, message, type="server_error", code="engine_error")
