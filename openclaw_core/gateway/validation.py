"""Body bytes → a validated model, or one OpenAI-shaped error for the first thing that is wrong."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError
from pydantic_core import PydanticCustomError

from openclaw_core.gateway.errors import ApiError, invalid

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

_SHOWN_CHARS = 60
"""A wrong value up to this length is repeated in the message."""

MAX_DEPTH = 64
"""Objects and arrays inside one another; schemas of tools are the deepest that a client has reason to send."""


MAX_KEYS = 1024
"""Of one object. Each wrong one is an error that takes its time to be collected."""


class Body(BaseModel):
    """A JSON object in which an unknown name is an error."""

    model_config = ConfigDict(extra="forbid", strict=True)


Model = TypeVar("Model", bound=Body)


def refused(reason: str, *harmless: Any) -> BeforeValidator:
    """For a field that is known but cannot be honoured: null and ``harmless`` are accepted, the rest is told ``reason``."""

    def check(value: Any) -> Any:
        if value is None or any(type(value) is type(other) and value == other for other in harmless):
            return value
        raise PydanticCustomError("unsupported_parameter", "{reason}", {"reason": reason})

    return BeforeValidator(check)


def validate(model: type[Model], body: bytes, *, checked: bool = False) -> Model:
    """Read ``body`` as JSON in the form of ``model``; ``checked``: it has gone through ``read_json``. Raises ApiError (400)."""
    if not checked:
        read_json(body)
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        raise _explain(error.errors(include_url=False, include_context=False)[0]) from None


def read_json(body: bytes) -> dict[str, Any]:
    """A JSON object as the standard has it: UTF-8, no key twice, no NaN, no half of a surrogate pair; neither deep nor wide.

    Raises:
        ApiError: 400, saying which of these it is and where.
    """
    try:
        value = json.loads(body.decode("utf-8"), object_pairs_hook=_without_repeats, parse_constant=_not_a_number)
    except UnicodeDecodeError as error:
        raise invalid(f"The body is not UTF-8: byte {error.start} begins no character.", code="invalid_json") from None
    except json.JSONDecodeError as error:
        raise invalid(f"The body is not valid JSON: {error}.", code="invalid_json") from None
    except RecursionError:
        raise _too_deep() from None
    except ValueError:  # Python reads no number with more digits than sys.get_int_max_str_digits()
        raise invalid("The body holds a number with too many digits.", code="invalid_json") from None
    if not isinstance(value, dict):
        raise invalid("The body must be a JSON object.", code="invalid_json")
    _check_values(value)
    return value


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(pairs) > MAX_KEYS:
        raise invalid(f"The body holds an object with more than {MAX_KEYS} keys.", code="invalid_json")
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise invalid(f"The key {name[:_SHOWN_CHARS]!a} is there twice in one object.", code="invalid_json")
        found[name] = value
    return found


def _not_a_number(constant: str) -> NoReturn:
    raise invalid(f"The body is not valid JSON: {constant} is no JSON number.", code="invalid_json")


def _too_deep() -> ApiError:
    return invalid(f"The body is nested more than {MAX_DEPTH} levels deep.", code="invalid_json")


def _check_values(value: Any) -> None:
    """Without recursion: what is too deep must not reach code that recurses."""
    level, depth = [value], 0
    while level:
        if depth > MAX_DEPTH:
            raise _too_deep()
        inner: list[Any] = []
        for item in level:
            if isinstance(item, dict):
                inner.extend(item)
                inner.extend(item.values())
            elif isinstance(item, list):
                inner.extend(item)
            elif isinstance(item, str) and not item.isascii():
                _check_text(item)
        level, depth = inner, depth + 1


def _check_text(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        half = text[error.start].encode("ascii", "backslashreplace").decode()
        raise invalid(f"A text holds {half}, half of a surrogate pair, which is no character.", code="invalid_json") from None


def _explain(error: ErrorDetails) -> ApiError:
    field = _path(error["loc"])
    match error["type"]:
        case "json_invalid":
            return invalid(f"The body is not valid JSON: {error['msg']}.", code="invalid_json")
        case "missing":
            return invalid(f"Missing required parameter: '{field}'.", field, "missing_required_parameter")
        case "extra_forbidden":
            return invalid(f"Unrecognized or unsupported parameter: '{field}'.", field, "unknown_parameter")
        case "unsupported_parameter":
            return invalid(f"Unsupported parameter: '{field}'. {error['msg']}", field, "unsupported_parameter")
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
