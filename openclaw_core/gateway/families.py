"""How each model family writes a conversation down as token ids, and which family a model directory belongs to.

The package ``renderers`` has Qwen3's form, which is set right here where it differs from the model's own template. Two
are ours: plain ChatML, which SmolLM2 uses with a default system turn, and the Qwen3 models that always think, whose
generation prompt already opens the reasoning block.
"""

from __future__ import annotations

import json
import re
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol, cast

from renderers import RenderedTokens
from renderers.qwen3 import Qwen3Renderer
from transformers import PreTrainedTokenizerBase

from openclaw_core.errors import OpenClawError
from openclaw_core.gateway.parsing import Sections

IM_START, IM_END = "<|im_start|>", "<|im_end|>"
_QWEN3_TOKENS = (IM_START, IM_END, "<|endoftext|>", "<think>", "</think>", "<tool_call>", "</tool_call>")
_PROBE = "probe"
_CHATML = re.compile(
    rf"(?:{re.escape(IM_START)}system\n(?P<system>.*?){re.escape(IM_END)}\n)?"
    rf"{re.escape(IM_START)}user\n{_PROBE}{re.escape(IM_END)}\n{re.escape(IM_START)}assistant\n",
    re.DOTALL,
)


_KNOWN_TEXTS, _KNOWN_CHARS = 2048, 8000
"""How many texts, up to what length, are not tokenized again."""


class RenderError(OpenClawError):
    """A conversation cannot be rendered, or a renderer disagrees with the model's own chat template.

    ``param``: the field of a request that is at fault, where a request is.
    """

    param = "messages"


class ToolsUnsupported(RenderError):
    """The model's chat template has no place for tools."""

    param = "tools"


class FamilyRenderer(Protocol):
    """How one family writes. Ids come with the index of their message: -1 for what belongs to none."""

    @property
    def sections(self) -> Sections:
        """The tokens around the parts of an answer."""
        ...

    def render(
        self, messages: list[Any], *, tools: list[Any] | None = None, add_generation_prompt: bool = False
    ) -> RenderedTokens:
        """A whole conversation. Raises RenderError."""
        ...

    def bridge(
        self, prompt_ids: list[int], response_ids: list[int], new_messages: list[Any], tools: list[Any]
    ) -> RenderedTokens | None:
        """A prompt and its whole answer as they are, and after them what is new; indices count from ``new_messages``.

        None where the family would write the conversation differently. Raises RenderError.
        """
        ...

    def get_stop_token_ids(self) -> list[int]:
        """The ids that end an answer, the end-of-turn token first."""
        ...


class ChatMLRenderer:
    """ChatML: ``<|im_start|>role\\ncontent<|im_end|>\\n`` for each message, and nothing else.

    ``default_system`` is the system turn put first where a conversation has none.
    """

    sections = Sections()

    def __init__(self, tokenizer: PreTrainedTokenizerBase, default_system: str | None) -> None:
        self._tokenizer = tokenizer
        self._default_system = default_system
        self._start, self._end = _control_ids(tokenizer, (IM_START, IM_END))
        # A conversation comes back with every request, one message longer.
        self._known = lru_cache(maxsize=_KNOWN_TEXTS)(self._tokenized)
        self._newline = self._encode("\n")

    def render(
        self, messages: list[Any], *, tools: list[Any] | None = None, add_generation_prompt: bool = False
    ) -> RenderedTokens:
        """See FamilyRenderer. Raises RenderError where there are tools or calls: the template has no place for them."""
        self._check(messages, tools)
        first = self._default_system if messages[0]["role"] != "system" else None
        head = [] if first is None else self._turn("system", first)
        return self._written(head, messages, generation_prompt=add_generation_prompt)

    def bridge(
        self, prompt_ids: list[int], response_ids: list[int], new_messages: list[Any], tools: list[Any]
    ) -> RenderedTokens | None:
        """See FamilyRenderer. Nothing that was said is ever written differently later, so this always can be."""
        self._check(new_messages, tools)
        if not new_messages or not _whole(response_ids, self._end, self.get_stop_token_ids()):
            return None
        return self._written([*prompt_ids, *response_ids, *self._newline], new_messages, generation_prompt=True)

    def get_stop_token_ids(self) -> list[int]:
        """Only the end-of-turn token."""
        return [self._end]

    def _check(self, messages: list[Any], tools: list[Any] | None) -> None:
        if tools:
            raise ToolsUnsupported("This model's chat template has no place for tools.")
        if any(message.get("tool_calls") for message in messages):
            raise RenderError("This model's chat template has no place for the tool_calls of a message.")

    def _written(self, head: list[int], messages: list[Any], *, generation_prompt: bool) -> RenderedTokens:
        ids, owners = list(head), [-1] * len(head)
        for index, message in enumerate(messages):
            turn = self._turn(message["role"], message["content"])
            ids += turn
            owners += [index] * len(turn)
        if generation_prompt:
            opening = [self._start, *self._encode("assistant\n")]
            ids += opening
            owners += [-1] * len(opening)
        return RenderedTokens(token_ids=ids, message_indices=owners, message_roles=[message["role"] for message in messages])

    def _turn(self, role: str, content: str) -> list[int]:
        return [self._start, *self._encode(f"{role}\n{content}"), self._end, *self._newline]

    def _encode(self, text: str) -> list[int]:
        return list(self._known(text) if len(text) <= _KNOWN_CHARS else self._tokenized(text))

    def _tokenized(self, text: str) -> tuple[int, ...]:
        return tuple(self._tokenizer.encode(text, add_special_tokens=False))


class Qwen3FamilyRenderer(Qwen3Renderer):
    """Qwen3, thinking or not as it likes; the stock renderer where it differs from the template is set right."""

    opening = ""
    """What the generation prompt ends with, after the role."""

    @property
    def sections(self) -> Sections:
        """Reasoning and tool calls have tokens of their own."""
        think = self._token_id("<think>")
        return Sections(think, self._think_end, self._tool_call, self._tool_call_end, strip=True)

    def render(
        self, messages: list[Any], *, tools: list[Any] | None = None, add_generation_prompt: bool = False
    ) -> RenderedTokens:
        """See FamilyRenderer."""
        stock = super().render(
            [_apart(message) for message in messages], tools=tools, add_generation_prompt=add_generation_prompt
        )
        return self._opened(stock) if add_generation_prompt else stock

    def bridge(
        self, prompt_ids: list[int], response_ids: list[int], new_messages: list[Any], tools: list[Any]
    ) -> RenderedTokens | None:
        """See FamilyRenderer. Only within a tool cycle, with the same tools: at the user's next question, the template
        leaves the reasoning of earlier turns out.
        """
        if not all(message["role"] == "tool" for message in new_messages):
            return None
        if not _whole(response_ids, self._im_end, self.get_stop_token_ids()) or not self._offers(prompt_ids, tools):
            return None
        stock = self.bridge_to_next_turn(prompt_ids, response_ids, new_messages, tools=tools)
        return None if stock is None else self._opened(stock)

    def _opened(self, stock: RenderedTokens) -> RenderedTokens:
        ids = self._encode(self.opening)
        owners = stock.message_indices + [-1] * len(ids)
        return RenderedTokens(token_ids=stock.token_ids + ids, message_indices=owners, message_roles=stock.message_roles)

    def _offers(self, prompt_ids: list[int], tools: list[Any]) -> bool:
        """Whether exactly these tools are described in the first turn of a prompt."""
        first = self._first_turn(prompt_ids)
        if not tools:
            return not first.endswith(self._tools_text([{}]).partition("{}")[2])
        return first.endswith(self._tools_text(tools))

    def _tools_text(self, tools: list[Any]) -> str:
        """How the tools are described at the end of the system turn."""
        alone = self._first_turn(super().render([{"role": "user", "content": ""}], tools=tools).token_ids)
        return alone.removeprefix(f"{IM_START}system\n")

    def _first_turn(self, ids: list[int]) -> str:
        end = ids.index(self._im_end) if self._im_end in ids else len(ids)
        return self._tokenizer.decode(ids[:end], skip_special_tokens=False)

    def _last_query_index(self, messages: list[Any]) -> int:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The template looks at a text as it is; the stock renderer strips it first."""
        queries = [index for index, message in enumerate(messages) if self._is_query(message)]
        return queries[-1] if queries else len(messages) - 1

    @staticmethod
    def _is_query(message: Any) -> bool:
        text = message["content"]
        return message["role"] == "user" and not (text.startswith("<tool_response>") and text.endswith("</tool_response>"))


class Qwen3ThinkingRenderer(Qwen3FamilyRenderer):
    """Qwen3 models that always think (Qwen3-4B-Thinking-2507): the generation prompt opens the reasoning block."""

    opening = "<think>\n"


def _apart(message: Any) -> Any:
    """An assistant's message whose text holds its reasoning, with the two apart: split as the template splits them."""
    text = message["content"]
    if message["role"] != "assistant" or message.get("reasoning_content") is not None or "</think>" not in text:
        return message
    parts = text.split("</think>")
    reasoning = parts[0].rstrip("\n").split("<think>")[-1].lstrip("\n")
    return message | {"content": parts[-1].lstrip("\n"), "reasoning_content": reasoning}


def _whole(response_ids: list[int], end_of_turn: int, stop_ids: list[int]) -> bool:
    """Whether an answer ended as the family ends turns, and nowhere before. Cut answers are not written as they are."""
    return bool(response_ids) and response_ids[-1] == end_of_turn and not set(response_ids[:-1]) & set(stop_ids)


def renderer_for(directory: Path, tokenizer: PreTrainedTokenizerBase) -> FamilyRenderer:
    """The renderer of the model in ``directory``, told by its config.json and by what its chat template writes.

    Raises:
        RenderError: no renderer writes what this model was trained on.
    """
    model_type = json.loads((directory / "config.json").read_text())["model_type"]
    prompt = _probe(directory, tokenizer)
    vocabulary = tokenizer.get_vocab()
    if model_type == "qwen3" and all(token in vocabulary for token in _QWEN3_TOKENS):
        return (Qwen3ThinkingRenderer if prompt.endswith("<think>\n") else Qwen3FamilyRenderer)(cast(Any, tokenizer))
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
