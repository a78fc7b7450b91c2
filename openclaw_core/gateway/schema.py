"""What a chat request may say. What cannot be honoured is refused with an error that names the field, never ignored.

Three kinds of fields: honoured; accepted without effect, where they ask for nothing that an answer could show; refused,
where only null is accepted. docs/GATEWAY.md has them in a table.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from openclaw_core.engines.protocol import Grammar
from openclaw_core.gateway.errors import invalid
from openclaw_core.gateway.messages import ROLES, ChatMessage, normalise
from openclaw_core.gateway.tools import MAX_TOOLS, Tool, ToolChoiceField, ToolMode, forced_schema
from openclaw_core.gateway.validation import Body, read_json, refused, validate
from openclaw_core.types import Message, TurnType

__all__ = ["ROLES", "ChatRequest", "ToolMode", "check_allowed", "grammar_of", "parse_chat", "parse_close"]

MAX_MESSAGES = 4096

_INT32 = 2**31 - 1

NonEmpty = Annotated[str, Field(min_length=1)]
Empty = Annotated[dict[str, Any], Field(max_length=0)]


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _off_is_minus_one(top_k: int) -> int:
    return top_k or -1


class StreamOptions(Body):
    """``include_usage``: a last chunk with the token counts."""

    include_usage: bool | None = None
    include_obfuscation: Annotated[Literal[False] | None, refused("Chunks are not padded.", False)] = None


class JsonSchema(Body):
    """The schema that an answer must match; it always does, ``strict`` or not."""

    name: NonEmpty
    description: str | None = None
    json_schema: dict[str, Any] = Field(alias="schema")
    strict: bool | None = None


class ResponseFormat(Body):
    """The form of an answer. All but text need an engine with grammars."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


class ChatRequest(Body):
    """The body of POST /v1/chat/completions.

    ``top_k``, ``min_p``, ``repetition_penalty``, ``regex`` and ``ebnf`` are SGLang's extensions.
    """

    model: str
    messages: list[ChatMessage] = Field(min_length=1)
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: int | None = Field(None, ge=1, le=_INT32)
    max_completion_tokens: int | None = Field(None, ge=1, le=_INT32)
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: Annotated[int, AfterValidator(_off_is_minus_one)] | None = Field(None, ge=-1, le=_INT32)
    min_p: float | None = Field(None, ge=0, le=1)
    repetition_penalty: float | None = Field(None, gt=0, le=2)
    frequency_penalty: float | None = Field(None, ge=-2, le=2)
    presence_penalty: float | None = Field(None, ge=-2, le=2)
    seed: int | None = Field(None, ge=-(2**63), lt=2**63)
    stop: Annotated[
        list[NonEmpty] | None, BeforeValidator(_as_list, json_schema_input_type=NonEmpty | list[NonEmpty] | None)
    ] = Field(None, max_length=4)
    n: int | None = Field(None, ge=1, le=8)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=20)
    tools: list[Tool] | None = Field(None, max_length=MAX_TOOLS)
    tool_choice: ToolChoiceField = None
    parallel_tool_calls: bool | None = None
    response_format: ResponseFormat | None = None
    regex: NonEmpty | None = None
    ebnf: NonEmpty | None = None
    user: str | None = None
    metadata: dict[str, str] | None = None
    # Accepted without effect: they ask for nothing that an answer could show.
    store: bool | None = None
    modalities: list[Literal["text"]] | None = Field(None, max_length=2)
    service_tier: Literal["auto", "default"] | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    prompt_cache_options: dict[str, Any] | None = None
    # Known, and refused: no part of this gateway could honour them.
    logit_bias: Annotated[Empty | None, refused("No token is made more or less likely than it is.", {})] = None
    functions: Annotated[list[Any] | None, refused("Send tools.", [])] = Field(None, max_length=0)
    function_call: Annotated[None, refused("Send tool_choice.")] = None
    reasoning_effort: Annotated[None, refused("This model thinks as long as it thinks; max_tokens bounds it.")] = None
    verbosity: Annotated[None, refused("Say in a message how long an answer you want.")] = None
    chat_template_kwargs: Annotated[Empty | None, refused("The prompt is always the one that the model is trained on.", {})] = (
        None
    )
    prediction: Annotated[None, refused("Nothing is predicted here.")] = None
    audio: Annotated[None, refused("This model reads and writes text only.")] = None
    web_search_options: Annotated[None, refused("There is no web search here.")] = None
    moderation: Annotated[None, refused("There is no moderation here.")] = None

    @property
    def wanted_tokens(self) -> int | None:
        """The longest answer that the client asked for; None where it did not say."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    @property
    def tool_mode(self) -> ToolMode:
        """What tool calls in the answer are."""
        choice = self.tool_choice.type if self.tool_choice else "auto"
        if not self.tools or choice == "none":
            return ToolMode.NONE
        return ToolMode.AUTO if choice == "auto" else ToolMode.FORCED

    @property
    def offered_tools(self) -> tuple[dict[str, Any], ...]:
        """The tools that the model is told of, in OpenAI's form: none with tool_choice none."""
        return () if self.tool_mode is ToolMode.NONE else tuple(tool.plain() for tool in self.tools or ())


class CloseRequest(Body):
    """The body of POST /v1/sessions/{id}/close: the user's last words, to which no answer is wanted, or nothing."""

    message: ChatMessage | None = None


def parse_chat(body: bytes, max_messages: int = MAX_MESSAGES) -> tuple[ChatRequest, tuple[Message, ...]]:
    """The request and its messages in plain form (``normalise``). Raises ApiError."""
    messages = read_json(body).get("messages")
    if isinstance(messages, list) and len(messages) > max_messages:
        raise invalid(
            f"Invalid 'messages': array too long. Expected an array with maximum length {max_messages}, "
            f"but got an array with length {len(messages)} instead.",
            "messages",
            "array_above_max_length",
        )
    request = validate(ChatRequest, body, checked=True)
    _check_together(request)
    _check_tools(request)
    return request, tuple(normalise(message, f"messages[{index}]") for index, message in enumerate(request.messages))


def check_allowed(request: ChatRequest, turn_type: TurnType, *, grammars: bool) -> None:
    """What depends on the kind of turn and on the engine. Raises ApiError naming the field.

    Only a side turn may have several answers or a grammar: a main turn is what the model, unbound, would say next.
    ``grammars``: whether the engine has any.
    """
    side = turn_type is TurnType.SIDE
    if (request.n or 1) > 1 and not side:
        raise invalid("A main turn has one answer; n above 1 is for side turns (X-Turn-Type: side).", "n", "unsupported_value")
    field = next(iter(_bound_by(request)), None)
    if field is None:
        return
    if not grammars:
        raise invalid(f"The engine has no grammars, so {field} cannot be honoured.", field, "unsupported_value")
    if not side:
        raise invalid(
            f"A main turn is sampled without a grammar; {field} is for side turns (X-Turn-Type: side).",
            field,
            "unsupported_value",
        )


def wants_side(request: ChatRequest) -> bool:
    """Whether it asks for what only a side turn may have."""
    return (request.n or 1) > 1 or bool(_bound_by(request))


def grammar_of(request: ChatRequest) -> Grammar | None:
    """What the answer must match, if anything."""
    if request.regex is not None:
        return Grammar("regex", request.regex)
    if request.ebnf is not None:
        return Grammar("ebnf", request.ebnf)
    if request.tool_mode is ToolMode.FORCED:
        choice = request.tool_choice
        only = choice.function.name if choice and choice.function else None
        tools, several = list(request.offered_tools), only is None and request.parallel_tool_calls is not False
        return Grammar("json_schema", json.dumps(forced_schema(tools, only=only, several=several), ensure_ascii=False))
    match request.response_format:
        case ResponseFormat(type="json_object"):
            return Grammar("json_schema", '{"type": "object"}')
        case ResponseFormat(json_schema=JsonSchema(json_schema=schema)):
            return Grammar("json_schema", json.dumps(schema, ensure_ascii=False))
        case _:
            return None


def parse_close(body: bytes) -> Message | None:
    """The last user message of a session that is closed, if there is one. Raises ApiError."""
    message = validate(CloseRequest, body).message if body else None
    if message is None:
        return None
    if message.role != "user":
        raise invalid(f"The last message of a session is a user's, not one of role {message.role!r}.", "message.role")
    return normalise(message, "message")


def _bound_by(request: ChatRequest) -> list[str]:
    """The fields that bind an answer to a grammar."""
    bound = {
        "response_format": request.response_format is not None and request.response_format.type != "text",
        "regex": request.regex is not None,
        "ebnf": request.ebnf is not None,
        "tool_choice": request.tool_mode is ToolMode.FORCED,
    }
    return [field for field, is_bound in bound.items() if is_bound]


def _check_together(request: ChatRequest) -> None:
    """Fields that only make sense, or do not go, with others."""
    if request.max_tokens is not None and request.max_completion_tokens not in (None, request.max_tokens):
        raise invalid("max_tokens and max_completion_tokens differ; send one of them.", "max_tokens")
    if request.stream_options is not None and not request.stream:
        raise invalid("stream_options is only allowed with stream: true.", "stream_options")
    if request.top_logprobs and not request.logprobs:
        raise invalid("top_logprobs is only allowed with logprobs: true.", "top_logprobs")
    if (form := request.response_format) is not None and (form.json_schema is None) == (form.type == "json_schema"):
        raise invalid(
            "response_format.json_schema goes with type 'json_schema', and only with it.", "response_format.json_schema"
        )
    if len(bound := _bound_by(request)) > 1:
        raise invalid(f"An answer has one grammar; send only one of {', '.join(bound)}.", bound[1])


def _check_tools(request: ChatRequest) -> None:
    names: list[str] = []
    for index, tool in enumerate(request.tools or ()):
        if tool.function.name in names:
            raise invalid(f"Two tools are called {tool.function.name!r}.", f"tools[{index}].function.name")
        names.append(tool.function.name)
        if (kind := (tool.function.parameters or {}).get("type", "object")) != "object":
            where = f"tools[{index}].function.parameters"
            raise invalid(f"{where} must be the JSON schema of an object, not of type {str(kind)[:40]!r}.", where)
    if (choice := request.tool_choice) is not None:
        if choice.type in ("required", "function") and not names:
            raise invalid("tool_choice demands a call, but there are no tools.", "tool_choice")
        if (choice.type == "function") != (choice.function is not None):
            raise invalid("tool_choice names its function with type 'function', and only with it.", "tool_choice")
        if choice.function is not None and choice.function.name not in names:
            raise invalid(f"tool_choice names {choice.function.name!r}, which is not among the tools.", "tool_choice")
    if request.parallel_tool_calls is False and request.tool_mode is ToolMode.AUTO:
        raise invalid(
            "Unsupported value: 'parallel_tool_calls' cannot be false: the model may call several tools in one answer.",
            "parallel_tool_calls",
            "unsupported_value",
        )
