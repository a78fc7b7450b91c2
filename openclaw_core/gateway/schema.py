"""What a chat request may say. What cannot be honoured is refused with an error that names the field, never ignored."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from openclaw_core.gateway.errors import invalid
from openclaw_core.gateway.validation import validate
from openclaw_core.types import Message

ROLES = ("system", "developer", "user", "assistant", "tool")


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _off_is_minus_one(top_k: int) -> int:
    return top_k or -1


class Body(BaseModel):
    """A JSON object in which an unknown name is an error."""

    model_config = ConfigDict(extra="forbid", strict=True)


class StreamOptions(Body):
    """``include_usage``: a last chunk with the token counts."""

    include_usage: bool | None = None


class TextFormat(Body):
    """The only response format so far."""

    type: Literal["text"]


class ChatMessage(Body):
    """One message. Clients send an answer back with its empty fields, so those are accepted empty."""

    role: str
    content: Any = None
    reasoning_content: str | None = None
    name: str | None = None
    tool_call_id: str | None = None
    tool_calls: list[Any] | None = Field(None, max_length=0)
    refusal: None = None
    audio: None = None
    function_call: None = None
    annotations: list[Any] | None = Field(None, max_length=0)


class ChatRequest(Body):
    """The body of POST /v1/chat/completions. ``top_k``, ``min_p`` and ``repetition_penalty`` are SGLang's extensions."""

    model: str
    messages: list[ChatMessage] = Field(min_length=1)
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: int | None = Field(None, ge=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: Annotated[int, AfterValidator(_off_is_minus_one)] | None = Field(None, ge=-1)
    min_p: float | None = Field(None, ge=0, le=1)
    repetition_penalty: float | None = Field(None, gt=0, le=2)
    frequency_penalty: float | None = Field(None, ge=-2, le=2)
    presence_penalty: float | None = Field(None, ge=-2, le=2)
    seed: int | None = Field(None, ge=-(2**63), lt=2**63)
    stop: Annotated[list[Annotated[str, Field(min_length=1)]] | None, BeforeValidator(_as_list)] = Field(None, max_length=4)
    user: str | None = None
    metadata: dict[str, str] | None = None
    # Accepted where they ask for nothing that is not done anyway.
    store: bool | None = None
    n: Literal[1] | None = None
    tools: list[Any] | None = Field(None, max_length=0)
    tool_choice: Literal["none", "auto"] | None = None
    parallel_tool_calls: bool | None = None
    logprobs: Literal[False] | None = None
    top_logprobs: Literal[0] | None = None
    logit_bias: dict[str, float] | None = Field(None, max_length=0)
    response_format: TextFormat | None = None
    modalities: list[Literal["text"]] | None = None
    service_tier: Literal["auto", "default"] | None = None

    @property
    def wanted_tokens(self) -> int | None:
        """The longest answer that the client asked for; None where it did not say."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens


class CloseRequest(Body):
    """The body of POST /v1/sessions/{id}/close: the user's last words, to which no answer is wanted, or nothing."""

    message: ChatMessage | None = None


def parse_chat(body: bytes) -> tuple[ChatRequest, tuple[Message, ...]]:
    """The request and its messages in plain form (``normalise``). Raises ApiError."""
    request = validate(ChatRequest, body)
    if request.max_tokens is not None and request.max_completion_tokens not in (None, request.max_tokens):
        raise invalid("max_tokens and max_completion_tokens differ; send one of them.", "max_tokens")
    if request.stream_options is not None and not request.stream:
        raise invalid("stream_options is only allowed with stream: true.", "stream_options")
    return request, tuple(normalise(message, f"messages[{index}]") for index, message in enumerate(request.messages))


def parse_close(body: bytes) -> Message | None:
    """The last user message of a session that is closed, if there is one. Raises ApiError."""
    message = validate(CloseRequest, body).message if body else None
    if message is None:
        return None
    if message.role != "user":
        raise invalid(f"The last message of a session is a user's, not one of role {message.role!r}.", "message.role")
    return normalise(message, "message")


def normalise(message: ChatMessage, where: str) -> Message:
    """A message with a known role (developer is system) and its content as one text. Raises ApiError naming ``where``."""
    if message.role not in ROLES:
        raise invalid(f"Invalid role {message.role!r}. Allowed are {', '.join(ROLES)}.", f"{where}.role")
    plain: Message = {
        "role": "system" if message.role == "developer" else message.role,
        "content": _text(message.content, f"{where}.content"),
    }
    for name in ("reasoning_content", "tool_call_id"):
        if (value := getattr(message, name)) is not None:
            plain[name] = value
    return plain


def _text(content: Any, where: str) -> str:
    """Text as it is; a list of text parts joined by line breaks."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or not content:
        raise invalid(f"{where} must be text or a list of text parts.", where, "invalid_type")
    texts: list[str] = []
    for index, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else type(part).__name__
        if not isinstance(part, dict) or kind != "text" or not isinstance(part.get("text"), str):
            raise invalid(
                f"{where}[{index}] is a part of type {kind!r}; this model reads parts of type 'text' only.",
                f"{where}[{index}]",
                "unsupported_content",
            )
        texts.append(part["text"])
    return "\n".join(texts)
