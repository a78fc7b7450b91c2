"""A judge behind any OpenAI-compatible endpoint: POST <base_url>/chat/completions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from openclaw_core.judge.client import JudgeError, JudgeReply
from openclaw_core.judge.prompting import JudgePrompts
from openclaw_core.judge.servers import Servers
from openclaw_core.types import NextState, Question

PATH = "/chat/completions"
HEADERS = {"X-Turn-Type": "side"}
"""Should the endpoint be the gateway of a run, its judgements are not to be trained on. Others do not know the header."""


class _Part(BaseModel):
    model_config = ConfigDict(extra="ignore")


class _Message(_Part):
    content: str | None = None


class _Choice(_Part):
    message: _Message
    finish_reason: str | None = None


class _Usage(_Part):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None


class _Completion(_Part):
    choices: list[_Choice] = Field(min_length=1)
    usage: _Usage | None = None


class OpenAIJudge:
    """Asks ``model``. What a reasoning model thinks (``reasoning_content``) is never read: only its content is its vote.

    ``body`` is laid over each request; a None takes a field out.
    """

    def __init__(
        self,
        servers: Servers,
        prompts: JudgePrompts,
        *,
        model: str,
        max_tokens: int,
        temperature: float,
        deadline_s: float,
        body: Mapping[str, Any],
    ) -> None:
        self._servers, self._prompts, self._deadline_s = servers, prompts, deadline_s
        self.model, self.prompt_version = model, prompts.version
        merged = {"model": model, "max_tokens": max_tokens, "temperature": temperature, "stream": False, **body}
        self._body = {name: value for name, value in merged.items() if value is not None}

    async def vote(self, question: Question, answer: str, next_state: NextState, vote_index: int) -> JudgeReply:
        """One vote (JudgeClient)."""
        messages = self._prompts.messages(question, answer, next_state)
        parsed = await self._servers.post(PATH, {**self._body, "messages": messages}, self._deadline_s)
        try:
            completion = _Completion.model_validate(parsed)
        except ValidationError as error:
            raise JudgeError(f"the judge {self.model} answered with no chat completion: {error.errors()[0]['msg']}") from error
        choice, usage = completion.choices[0], completion.usage or _Usage()
        return JudgeReply(
            text=choice.message.content or "",
            truncated=choice.finish_reason == "length",
            prompt_tokens=usage.prompt_tokens,
            completion_tokens=usage.completion_tokens,
        )

    async def close(self) -> None:
        """Close the connections."""
        await self._servers.close()
