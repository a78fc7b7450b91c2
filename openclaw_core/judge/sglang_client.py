"""A judge on SGLang servers of our own: POST /generate, the prompt as token ids, the answer read by its ids.

Text goes in at this class; ids go over the wire, rendered here with the judge model's own tokenizer and chat form. Why not
the text: markers of the chat form that stand in an answer or in a tool's result can be broken here before they are encoded,
so nobody can end the judge's prompt early and write a verdict into it; the length is known before the server is asked; and
the judge's reasoning is told from its verdict by token ids, so a verdict that it only considered is never counted. What a
judge reads is not trained on, so nothing depends on the ids being those that the policy saw.
"""

from __future__ import annotations

from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Protocol

from openclaw_core.engines.sglang.errors import parse_abort
from openclaw_core.gateway.parsing import Answer
from openclaw_core.judge.client import JudgeError, JudgeOverflow, JudgeRefused, JudgeReply
from openclaw_core.judge.prompting import JudgePrompts
from openclaw_core.judge.servers import Servers
from openclaw_core.types import Message, NextState, Question

PATH, INFO_PATH = "/generate", "/server_info"
LEAST_ANSWER = 256
"""Tokens that a verdict needs at least: with fewer left in the context, the turn does not fit."""


class Rendered(Protocol):
    """A prompt as ids."""

    @property
    def prompt_ids(self) -> tuple[int, ...]: ...


class Renderer(Protocol):
    """What is needed of gateway.rendering.ChatRenderer, which brings transformers with it."""

    stop_token_ids: tuple[int, ...]
    tokenizer: Any

    def render(self, messages: list[Message]) -> Rendered: ...

    def parse(self, response_ids: list[int], prompt_ids: tuple[int, ...]) -> Answer: ...


@dataclass
class SGLangJudge:
    """``renderer``: of the judge's model. Its servers are asked once how long a prompt may be."""

    servers: Servers
    prompts: JudgePrompts
    renderer: Renderer
    model: str
    max_tokens: int
    temperature: float
    deadline_s: float

    def __post_init__(self) -> None:
        self._markers = control_markers(self.renderer.tokenizer)
        self._longest: int | None = None

    @property
    def prompt_version(self) -> str:
        """See JudgeClient."""
        return self.prompts.version

    async def vote(self, question: Question, answer: str, next_state: NextState, vote_index: int) -> JudgeReply:
        """One vote (JudgeClient). Raises JudgeOverflow where fewer than LEAST_ANSWER tokens would be left for it."""
        state = NextState(next_state.role, self._plain(next_state.text))
        ids = self.renderer.render(self.prompts.messages(question, self._plain(answer), state)).prompt_ids
        longest = await self._longest_sequence()
        room = longest - len(ids)
        if room < min(LEAST_ANSWER, self.max_tokens):
            raise JudgeOverflow(
                f"answer and next state make a {question} prompt of {len(ids)} tokens; the judge {self.model} has a context of "
                f"{longest}"
            )
        reply = await self.servers.post(PATH, self._request(ids, min(self.max_tokens, room)), self.deadline_s)
        return self._read(reply, ids)

    async def close(self) -> None:
        """Close the connections."""
        await self.servers.close()

    async def _longest_sequence(self) -> int:
        """Tokens of prompt and answer that every server takes. Raises JudgeError where none says."""
        if self._longest is not None:
            return self._longest
        infos = await self.servers.ask_each(INFO_PATH, self.deadline_s)
        limits = [limit for info in infos if isinstance(limit := info.get("max_req_input_len"), int)]
        if not limits:
            raise JudgeError(f"the servers of the judge {self.model} state no max_req_input_len at {INFO_PATH}; is it SGLang?")
        self._longest = min(limits)
        return self._longest

    def _request(self, ids: tuple[int, ...], max_new_tokens: int) -> dict[str, Any]:
        """Every sampling field that matters is sent: the server's defaults are those of the model's own files."""
        sampling = {
            "temperature": self.temperature,
            "max_new_tokens": max_new_tokens,
            "top_p": 1.0,
            "top_k": -1,
            "min_p": 0.0,
            "repetition_penalty": 1.0,
            "stop_token_ids": list(self.renderer.stop_token_ids),
            "skip_special_tokens": False,
        }
        return {"input_ids": list(ids), "sampling_params": sampling, "stream": False}

    def _read(self, reply: dict[str, Any], prompt_ids: tuple[int, ...]) -> JudgeReply:
        try:
            output_ids: list[int] = reply["output_ids"]
            meta: dict[str, Any] = reply["meta_info"]
            finish: dict[str, Any] = meta["finish_reason"]
            kind: str = finish["type"]
        except (KeyError, TypeError) as error:
            raise JudgeError(f"the judge {self.model} answered without {error}; is this SGLang's /generate?") from error
        if kind == "abort":
            fault = parse_abort(finish)
            refused = fault.status == HTTPStatus.BAD_REQUEST
            raise (JudgeRefused if refused else JudgeError)(f"the judge {self.model}: {fault.message}")
        return JudgeReply(
            text=self.renderer.parse(output_ids, prompt_ids).text,
            truncated=kind == "length",
            prompt_tokens=meta.get("prompt_tokens"),
            completion_tokens=meta.get("completion_tokens"),
        )

    def _plain(self, text: str) -> str:
        """``text`` with a space inside every control token that is written in it: then it is encoded as plain text."""
        for marker in self._markers:
            text = text.replace(marker, f"{marker[0]} {marker[1:]}")
        return text


def control_markers(tokenizer: Any) -> tuple[str, ...]:
    """The control tokens of a tokenizer as text, the longest first."""
    return tuple(sorted((str(text) for text in tokenizer.get_added_vocab() if len(text) > 1), key=len, reverse=True))
