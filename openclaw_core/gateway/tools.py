"""Functions that a model may call: how a client offers them, how it says which, and what a call is."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field
from pydantic_core import PydanticCustomError

from openclaw_core.gateway.errors import invalid
from openclaw_core.gateway.validation import Body, refused

MAX_TOOLS = 128
"""That are offered, or called in one answer."""

FunctionName = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
"""As OpenAI has it."""


class ToolMode(StrEnum):
    """What tool calls in an answer are."""

    NONE = "none"
    """Text: no tools were offered, or the client wants none called."""
    AUTO = "auto"
    """Calls, where the model makes any."""
    FORCED = "forced"
    """The whole answer: a grammar makes it a JSON array of calls (``forced_schema``)."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that the model made. ``arguments``: a JSON object as text."""

    id: str
    name: str
    arguments: str


class Function(Body):
    """What a function is called, what it is for, and the JSON schema of its arguments."""

    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: Annotated[
        Literal[False] | None, refused("The arguments of a call are not held to the schema, so it cannot be strict.", False)
    ] = None


class Tool(Body):
    """A function that is offered; there are no other tools."""

    type: Literal["function"]
    function: Function

    def plain(self) -> dict[str, Any]:
        """As chat templates want it: OpenAI's form, in its usual order, nothing that is null."""
        function = self.function.model_dump(include={"name", "description", "parameters"}, exclude_none=True)
        return {"type": "function", "function": function}


class NamedFunction(Body):
    """The function that must be called."""

    name: FunctionName


_WORDS = ("none", "auto", "required")


def _as_object(choice: Any) -> Any:
    if not isinstance(choice, str):
        return choice
    if choice not in _WORDS:
        raise PydanticCustomError("tool_choice", "allowed are none, auto, required, or an object that names a function")
    return {"type": choice}


class ToolChoice(Body):
    """Whether tools are called: a word, or the function that must be."""

    type: Literal["none", "auto", "required", "function"]
    function: NamedFunction | None = None


ToolChoiceField = Annotated[
    ToolChoice | None,
    BeforeValidator(_as_object, json_schema_input_type=Literal["none", "auto", "required"] | ToolChoice | None),
]


class CalledFunction(Body):
    """The function of a call in a conversation's history; ``arguments`` as the model wrote them, valid JSON or not."""

    name: Annotated[str, Field(min_length=1)]
    arguments: str


class HistoryCall(Body):
    """A call in a conversation's history. ``index`` comes from clients that put streamed pieces together."""

    id: str
    type: Literal["function"] = "function"
    function: CalledFunction
    index: int | None = Field(None, ge=0, le=1000)
    custom: Annotated[None, refused("Only function tools are supported.")] = None

    def plain(self) -> dict[str, Any]:
        """OpenAI's form, without ``index``."""
        return {"id": self.id, "type": self.type, "function": self.function.model_dump()}


def forced_schema(tools: list[dict[str, Any]], *, only: str | None, several: bool) -> dict[str, Any]:
    """The JSON schema of an answer that is nothing but calls: an array of {name, arguments}.

    ``only``: the function that must be called; any of ``tools`` where it is None. ``several``: more than one call.

    Raises:
        ApiError: 400, where two tools define the same name in two ways.
    """
    offered = [tool["function"] for tool in tools if only in (None, tool["function"]["name"])]
    calls = [
        {
            "type": "object",
            "properties": {
                "name": {"type": "string", "enum": [function["name"]]},
                "arguments": {"type": "object"} | function.get("parameters", {}),
            },
            "required": ["name", "arguments"],
            "additionalProperties": False,
        }
        for function in offered
    ]
    schema: dict[str, Any] = {"type": "array", "minItems": 1, "items": calls[0] if len(calls) == 1 else {"anyOf": calls}}
    return (
        schema | ({} if several else {"maxItems": 1}) | _definitions([function.get("parameters", {}) for function in offered])
    )


def _definitions(schemas: list[dict[str, Any]]) -> dict[str, Any]:
    """What the schemas define for their own use, brought to the root: that is where their references look."""
    shared: dict[str, dict[str, Any]] = {}
    for schema in schemas:
        for key in ("$defs", "definitions"):
            for name, definition in (schema.get(key) or {}).items():
                if shared.setdefault(key, {}).setdefault(name, definition) != definition:
                    raise invalid(
                        f"Two tools define {name[:40]!r} differently; with this tool_choice they must agree.", "tools"
                    )
    return shared
