"""The bodies that the gateway sends, as models: what the OpenAPI document says of them. ``wire`` makes them."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class Sent(BaseModel):
    """An object that is sent; it has no other fields."""

    model_config = ConfigDict(extra="forbid")


class SentFunction(Sent):
    """``arguments``: a JSON object as text."""

    name: str
    arguments: str


class SentCall(Sent):
    """A call that the model made."""

    id: str
    type: Literal["function"]
    function: SentFunction


class AnswerMessage(Sent):
    """The answer. ``content`` is null where there are only calls."""

    role: Literal["assistant"]
    content: str | None
    refusal: None
    reasoning_content: str = Field("", description="What the model thought first; only where it did.")
    tool_calls: list[SentCall] = Field([], description="Only where there are some.")


class TokenText(Sent):
    """A token; ``bytes`` where its text alone is half a character."""

    token: str
    logprob: float
    bytes: list[int]


class SampledToken(TokenText):
    """A token that was sampled, and the most probable ones in its place."""

    top_logprobs: list[TokenText]


class Logprobs(Sent):
    """Of every token of the answer, those of reasoning, calls and end of turn included."""

    content: list[SampledToken]
    refusal: None


class Choice(Sent):
    """One answer and why it ended."""

    index: int
    message: AnswerMessage
    logprobs: Logprobs | None
    finish_reason: Literal["stop", "length", "tool_calls"]


class Usage(Sent):
    """Token counts; of several choices, the completion's are added up."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class ChatCompletion(Sent):
    """A whole answer."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[Choice]
    usage: Usage


class StreamedFunction(Sent):
    """A whole function of a call: calls are not streamed in pieces."""

    name: str
    arguments: str


class StreamedCall(Sent):
    """A call at its place among the calls of the answer."""

    index: int
    id: str
    type: Literal["function"]
    function: StreamedFunction


class DeltaMessage(Sent):
    """What is new."""

    role: Literal["assistant"] = "assistant"
    content: str = ""
    reasoning_content: str = ""
    tool_calls: list[StreamedCall] = []


class ChunkChoice(Sent):
    """A piece of one answer; ``finish_reason`` comes with the last."""

    index: int
    delta: DeltaMessage
    logprobs: Logprobs | None
    finish_reason: Literal["stop", "length", "tool_calls"] | None


class ChatCompletionChunk(Sent):
    """One event of a streamed answer. ``usage`` is there where stream_options asks for it, set in the last chunk only."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    choices: list[ChunkChoice]
    usage: Usage | None = None


class ServedModel(Sent):
    """The model that is trained and served."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str


class ModelList(Sent):
    """It has one entry."""

    object: Literal["list"]
    data: list[ServedModel]


class ClosedSession(Sent):
    """``last_turn``: the id of the session's last turn, if it had one that was still open."""

    object: Literal["session"]
    id: str
    closed: Literal[True]
    last_turn: str | None


class Health(BaseModel):
    """Whether requests are answered now, with which weights, and how many wait."""

    model_config = ConfigDict(extra="allow")
    accepting: bool
    version: int | None
    queue: int


class ErrorFields(Sent):
    """``param``: the field at fault; ``code``: for programs."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(Sent):
    """OpenAI's shape of an error."""

    error: ErrorFields


SENT: tuple[type[BaseModel], ...] = (ChatCompletion, ChatCompletionChunk, ModelList, ClosedSession, Health, ErrorBody)
"""The bodies that stand at the top of a response."""
