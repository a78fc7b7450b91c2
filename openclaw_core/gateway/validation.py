"""Body bytes → a validated model, or one OpenAI-shaped error for the first thing that is wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from pydantic import BaseModel, ValidationError

from openclaw_core.gateway.errors import ApiError, invalid

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

Model = TypeVar("Model", bound=BaseModel)

_SHOWN_CHARS = 60
"""A wrong value up to this length is repeated in the message."""


def validate(model: type[Model], body: bytes) -> Model:
    """Read ``body`` as JSON in the form of ``model``. Raises ApiError (400)."""
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        raise _explain(error.errors(include_url=False, include_context=False)[0]) from None


def _explain(error: ErrorDetails) -> ApiError:
    field = _path(error["loc"])
    match error["type"]:
        case "json_invalid":
            return invalid(f"The body is not valid JSON: {error['msg']}.", code="invalid_json")
        case "missing":
            return invalid(f"Missing required parameter: '{field}'.", field, "missing_required_parameter")
        case "extra_forbidden":
            return invalid(f"Unrecognized or unsupported parameter: '{field}'.", field, "unknown_parameter")
        case _:
            shown = repr(error["input"])
            got = f" (got {shown})" if len(shown) <= _SHOWN_CHARS else ""
            return invalid(f"Invalid value for '{field}': {error['msg']}{got}.", field or None)


def _path(location: tuple[int | str, ...]) -> str:
    """('messages', 0, 'role') → messages[0].role, as OpenAI writes it."""
    path = ""
    for step in location:
        path += f"[{step}]" if isinstance(step, int) else f".{step}" if path else step
    return path
