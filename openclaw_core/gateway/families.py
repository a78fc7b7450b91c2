"""How each model family writes a conversation down as token ids, and which family a model directory belongs to.

The package ``renderers`` has Qwen3's form. Two are ours: plain ChatML, which SmolLM2 uses with a default system turn,
and the Qwen3 models that always think, whose generation prompt already opens the reasoning block.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, cast

from renderers import ParsedResponse, RenderedTokens
from renderers.qwen3 import Qwen3Renderer
from transformers import PreTrainedTokenizerBase

from openclaw_core.errors import OpenClawError

IM_START, IM_END = "<|im_start|>", "<|im_end|>"
_QWEN3_TOKENS = (IM_START, IM_END, "<|endoftext|>", "<think>", "</think>", "<tool_call>", "</tool_call>")
_PROBE = "probe"
_CHATML = re.compile(
    rf"(?:{re.escape(IM_START)}system\n(?P<system>.*?){re.escape(IM_END)}\n)?"
    rf"{re.escape(IM_START)}user\n{_PROBE}{re.escape(IM_END)}\n{re.escape(IM_START)}assistant\n",
    re.DOTALL,
)


class RenderError(OpenClawError):
    """A conversation cannot be rendered, or a renderer disagrees with the model's own chat template."""


class FamilyRenderer(Protocol):
    """The part of a ``renderers`` renderer that is used here."""

    def render(
        self, messages: list[Any], *, tools: list[Any] | None = None, add_generation_prompt: bool = False
    ) -> RenderedTokens:
        """Ids, and for each the index of its message: -1 for what belongs to none."""
        ...

    def parse_response(
        self, token_ids: list[int], *, tools: list[Any] | None = None, prompt_ids: list[int] | None = None
    ) -> ParsedResponse:
        """Sampled ids → text, reasoning and tool calls."""
        ...

    def get_stop_token_ids(self) -> list[int]:
        """The ids that end an answer, the end-of-turn token first."""
        ...


class ChatMLRenderer:
    """ChatML: ``<|im_start|>role\\ncontent<|im_end|>\\n`` for each message, and nothing else.

    ``default_system`` is the system turn put first where a conversation has none.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, default_system: str | None) -> None:
        self._tokenizer = tokenizer
        self._default_system = default_system
        self._start, self._end = _control_ids(tokenizer, (IM_START, IM_END))
        self._newline = self._encode("\n")

    def render(
        self, messages: list[Any], *, tools: list[Any] | None = None, add_generation_prompt: bool = False
    ) -> RenderedTokens:
        """See FamilyRenderer. Raises RenderError where there are tools: the template has no place for them."""
        if tools:
            raise RenderError("this model's chat template has no place for tools")
        ids: list[int] = []
        owners: list[int] = []

        def put(owner: int, piece: list[int]) -> None:
            ids.extend(piece)
            owners.extend([owner] * len(piece))

        if self._default_system is not None and messages[0]["role"] != "system":
            put(-1, self._turn("system", self._default_system))
        for index, message in enumerate(messages):
            put(index, self._turn(message["role"], message["content"]))
        if add_generation_prompt:
            put(-1, [self._start, *self._encode("assistant\n")])
        return RenderedTokens(token_ids=ids, message_indices=owners, message_roles=[message["role"] for message in messages])

    def parse_response(
        self, token_ids: list[int], *, tools: list[Any] | None = None, prompt_ids: list[int] | None = None
    ) -> ParsedResponse:
        """The text before the end of the turn, control tokens left out."""
        end = token_ids.index(self._end) if self._end in token_ids else len(token_ids)
        return ParsedResponse(content=str(self._tokenizer.decode(token_ids[:end], skip_special_tokens=True)))

    def get_stop_token_ids(self) -> list[int]:
        """Only the end-of-turn token."""
        return [self._end]

    def _turn(self, role: str, content: str) -> list[int]:
        return [self._start, *self._encode(f"{role}\n{content}"), self._end, *self._newline]

    def _encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False)


class Qwen3ThinkingRenderer(Qwen3Renderer):
    """Qwen3 models that always think (Qwen3-4B-Thinking-2507): the generation prompt ends with ``<think>\\n``."""

    def render(
        self, messages: list[Any], *, tools: list[Any] | None = None, add_generation_prompt: bool = False
    ) -> RenderedTokens:
        """As the stock renderer, with the reasoning block opened."""
        stock = super().render(messages, tools=tools, add_generation_prompt=add_generation_prompt)
        if not add_generation_prompt:
            return stock
        opening = self._encode("<think>\n")
        unsampled = [False] * len(opening)
        return replace(
            stock,
            token_ids=stock.token_ids + opening,
            message_indices=stock.message_indices + [-1] * len(opening),
            sampled_mask=stock.sampled_mask + unsampled,
            is_content=stock.is_content and stock.is_content + unsampled,
        )


def renderer_for(directory: Path, tokenizer: PreTrainedTokenizerBase) -> FamilyRenderer:
    """The renderer of the model in ``directory``, told by its config.json and by what its chat template writes.

    Raises:
        RenderError: no renderer writes what this model was trained on.
    """
    model_type = json.loads((directory / "config.json").read_text())["model_type"]
    prompt = _probe(directory, tokenizer)
    vocabulary = tokenizer.get_vocab()
    if model_type == "qwen3" and all(token in vocabulary for token in _QWEN3_TOKENS):
        return (Qwen3ThinkingRenderer if prompt.endswith("<think>\n") else Qwen3Renderer)(cast(Any, tokenizer))
    if (chatml := _CHATML.fullmatch(prompt)) is not None:
        return ChatMLRenderer(tokenizer, chatml["system"])
    raise RenderError(
        f"no renderer for {directory}: model_type {model_type!r}, whose chat template writes {prompt!r}; "
        "there are renderers for Qwen3 and for plain ChatML (SmolLM2)"
    )


def _probe(directory: Path, tokenizer: PreTrainedTokenizerBase) -> str:
    if not tokenizer.chat_template:
        raise RenderError(f"{directory} has no chat template; an instruct model is needed")
    return str(tokenizer.apply_chat_template([{"role": "user", "content": _PROBE}], tokenize=False, add_generation_prompt=True))


def _control_ids(tokenizer: PreTrainedTokenizerBase, tokens: tuple[str, ...]) -> list[int]:
    vocabulary = tokenizer.get_vocab()
    if missing := [token for token in tokens if token not in vocabulary]:
        raise RenderError(f"the tokenizer has no token {', '.join(missing)}")
    return [vocabulary[token] for token in tokens]
