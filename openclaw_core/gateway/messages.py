"""The messages of a chat request, and their plain form: what is rendered, stored and compared."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, WithJsonSchema

from openclaw_core.gateway.errors import invalid
from openclaw_core.gateway.tools import MAX_TOOLS, HistoryCall
from openclaw_core.gateway.validation import Body, refused
from openclaw_core.types import Message

ROLES = ("system", "developer", "user", "assistant", "tool")

_PART_SCHEMA = {
    "type": "object",
    "properties": {"type": {"type": "string", "enum": ["text"]}, "text": {"type": "string"}},
    "required": ["type", "text"],
}
_CONTENT_SCHEMA = {"anyOf": [{"type": "string"}, {"type": "array", "minItems": 1, "items": _PART_SCHEMA}, {"type": "null"}]}


class ChatMessage(Body):
    """One message. Clients send an answer back with its empty fields, so those are accepted empty.

    ``name`` has no effect: chat templates have no place for it.
    """

    role: Annotated[str, WithJsonSchema({"type": "string", "enum": list(ROLES)})]
    content: Annotated[Any, WithJsonSchema(_CONTENT_SCHEMA)] = None
    reasoning_content: str | None = None
    name: str | None = None
    tool_call_id: str | None = None
    tool_calls: list[HistoryCall] | None = Field(None, max_length=MAX_TOOLS)
    refusal: Annotated[None, refused("This model's answers have no refusals apart from their text.")] = None
    audio: Annotated[None, refused("This model reads and writes text only.")] = None
    function_call: Annotated[None, refused("Send tool_calls.")] = None
    annotations: list[Any] | None = Field(None, max_length=0)


def normalise(message: ChatMessage, where: str) -> Message:
    """A message in plain form. Raises ApiError naming the field below ``where``.

    The role is a known one (developer is system), the content one text; ``reasoning_content``, ``tool_calls`` and
    ``tool_call_id`` are there where they say something.
    """
    role = message.role
    if role not in ROLES:
        raise invalid(f"Invalid role {role!r}. Allowed are {', '.join(ROLES)}.", f"{where}.role")
    for field, owner in (("tool_calls", "assistant"), ("reasoning_content", "assistant"), ("tool_call_id", "tool")):
        if getattr(message, field) and role != owner:
            raise invalid(f"{where}.{field} belongs to messages of role {owner!r}, not {role!r}.", f"{where}.{field}")
    wordless = message.content is None and (message.tool_calls or message.reasoning_content)
    plain: Message = {
        "role": "system" if role == "developer" else role,
        "content": "" if wordless else _text(message.content, f"{where}.content"),
    }
    for field in ("reasoning_content", "tool_call_id"):
        if (value := getattr(message, field)) is not None:
            plain[field] = value
    if message.tool_calls:
        plain["tool_calls"] = [call.plain() for call in message.tool_calls]
    return plain


def _text(content: Any, where: str) -> str:
    """Text as it is; a list of text parts joined by line breaks."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or not content:
        raise invalid(f"{where} must be text or a list of text parts.", where, "invalid_type")
    return "\n".join(_part(part, f"{where}[{index}]") for index, part in enumerate(content))


def _part(part: Any, where: str) -> str:
    kind = part.get("type") if isinstance(part, dict) else type(part).__name__
    if not isinstance(part, dict) or kind != "text" or not isinstance(part.get("text"), str):
        shown = str(kind)[:40]
        raise invalid(
            f"{where} is a part of type {shown!r}; this model reads parts of type 'text' only.", where, "unsupported_content"
        )
    for name, value in part.items():
        if name not in ("type", "text") and value is not None:
            raise invalid(f"Unrecognized or unsupported parameter: '{where}.{name}'.", f"{where}.{name}", "unknown_parameter")
    return part["text"]
