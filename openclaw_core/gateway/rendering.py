"""Messages ↔ token ids: the only place where text becomes the ids that are sampled from, stored and trained on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from renderers import RenderedTokens
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from openclaw_core.gateway.families import ChatMLRenderer, FamilyRenderer, RenderError, renderer_for
from openclaw_core.gateway.fixtures import PLAIN, REASONING, Conversation
from openclaw_core.gateway.parsing import Answer, Ids, Sections, opens_reasoning, parse
from openclaw_core.gateway.tools import ToolCall, ToolMode
from openclaw_core.types import Message

__all__ = [
    "Answer",
    "ChatRenderer",
    "RenderError",
    "Rendering",
    "Sections",
    "ToolCall",
    "ToolMode",
    "check_template",
    "splice",
    "unsplice",
]


@dataclass(frozen=True, slots=True)
class Rendering:
    """A rendered request: ``prompt_ids`` [P], and where a hint goes.

    ``hint_offset`` is the index in ``prompt_ids`` right before the end-of-turn token of the last user message; None
    where there is no user message.
    """

    prompt_ids: Ids
    hint_offset: int | None


class ChatRenderer:
    """Renders and parses for one model. ``stop_token_ids`` end an answer, ``sections`` tell its parts."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, family: FamilyRenderer) -> None:
        self.tokenizer = tokenizer
        self.family = family
        self.stop_token_ids: Ids = tuple(family.get_stop_token_ids())
        self.sections: Sections = family.sections
        # Every token of every answer is decoded: without transformers around it, that takes a quarter of the time.
        cleans_up = getattr(tokenizer, "clean_up_tokenization_spaces", False)
        backend = None if cleans_up else getattr(tokenizer, "backend_tokenizer", None)
        self._decode: Callable[..., Any] = (backend or tokenizer).decode

    @classmethod
    def from_pretrained(cls, directory: Path) -> Self:
        """The renderer of a Hugging Face model directory, checked against its own chat template. Raises RenderError."""
        tokenizer = AutoTokenizer.from_pretrained(directory)
        renderer = cls(tokenizer, renderer_for(directory, tokenizer))
        check_template(renderer, tokenizer)
        return renderer

    def render(self, messages: Sequence[Message], tools: Sequence[dict[str, Any]] = ()) -> Rendering:
        """The prompt that asks for the next answer. Raises RenderError, whose ``param`` is the field at fault."""
        if not messages:
            raise RenderError("no messages to render")
        rendered = self.family.render(list(messages), tools=list(tools) or None, add_generation_prompt=True)
        return Rendering(tuple(rendered.token_ids), self._hint_offset(rendered, messages, None))

    def bridge(
        self,
        previous: Rendering,
        response_ids: Sequence[int],
        new_messages: Sequence[Message],
        tools: Sequence[dict[str, Any]] = (),
    ) -> Rendering | None:
        """The prompt that goes on after a stored turn, whose ids are kept as they are, with ``new_messages`` after them.

        None where the ids that the template would give say something else (another set of tools, an answer that was cut,
        reasoning that is left out from now on): such a conversation is rendered. Raises RenderError.
        """
        bridged = self.family.bridge(list(previous.prompt_ids), list(response_ids), list(new_messages), list(tools))
        if bridged is None:
            return None
        return Rendering(tuple(bridged.token_ids), self._hint_offset(bridged, new_messages, previous.hint_offset))

    def parse(self, response_ids: Sequence[int], prompt_ids: Sequence[int], tools: ToolMode = ToolMode.AUTO) -> Answer:
        """Sampled ids, or the first of them, → what a person reads.

        ``prompt_ids`` tell whether the answer begins inside a reasoning block.
        """
        end = next((at for at, token in enumerate(response_ids) if token in self.stop_token_ids), len(response_ids))
        in_reasoning = self.starts_in_reasoning(prompt_ids)
        return parse(response_ids[:end], self.sections, self.decode, in_reasoning=in_reasoning, tools=tools, seed=prompt_ids)

    def starts_in_reasoning(self, prompt_ids: Sequence[int]) -> bool:
        """Whether the answer to this prompt begins inside a reasoning block."""
        return opens_reasoning(prompt_ids, self.sections, self.stop_token_ids)

    @cached_property
    def always_reasons(self) -> bool:
        """Whether every answer begins inside a reasoning block, so that a grammar would bind the reasoning."""
        return self.starts_in_reasoning(self.render([{"role": "user", "content": ""}]).prompt_ids)

    def decode(self, ids: Sequence[int]) -> str:
        """Text, control tokens left out."""
        return str(self._decode(list(ids), skip_special_tokens=True))

    def _hint_offset(self, rendered: RenderedTokens, messages: Sequence[Message], before: int | None) -> int | None:
        """Where a hint goes in a prompt; ``before``: where it goes without ``messages``."""
        users = [index for index, message in enumerate(messages) if message["role"] == "user"]
        return _last_end_of_turn(rendered, users[-1], self.stop_token_ids[0]) if users else before

    def hint_ids(self, hint: str, label: str = "") -> Ids:
        """Ids of a hint as it is spliced in: after a blank line, under its label if it has one.

        A hint is data: control tokens written in it are encoded as plain text.
        """
        text = "\n\n" + (f"{label}\n" if label else "") + hint
        return tuple(self.tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True))


def splice(prompt_ids: Sequence[int], offset: int, hint_ids: Sequence[int]) -> Ids:
    """x^h of ALGORITHM 1: ``prompt_ids`` with ``hint_ids`` put in at ``offset``. Raises RenderError."""
    if not 0 <= offset <= len(prompt_ids):
        raise RenderError(f"hint offset {offset} is outside a prompt of {len(prompt_ids)} ids")
    return (*prompt_ids[:offset], *hint_ids, *prompt_ids[offset:])


def unsplice(spliced_ids: Sequence[int], offset: int, hint_ids: Sequence[int]) -> Ids:
    """The inverse of ``splice``. Raises RenderError where ``hint_ids`` are not at ``offset``."""
    end = offset + len(hint_ids)
    if tuple(spliced_ids[offset:end]) != tuple(hint_ids):
        raise RenderError(f"the hint's {len(hint_ids)} ids are not at offset {offset}")
    return (*spliced_ids[:offset], *spliced_ids[end:])


def check_template(renderer: ChatRenderer, tokenizer: PreTrainedTokenizerBase) -> None:
    """Compare rendered ids with the model's own chat template on fixture conversations.

    Raises:
        RenderError: naming the fixture, the index and the two texts at the first difference.
    """
    for fixture in PLAIN if isinstance(renderer.family, ChatMLRenderer) else PLAIN + REASONING:
        ours = renderer.render(fixture.messages, fixture.tools).prompt_ids
        theirs = _by_template(tokenizer, fixture)
        if ours != theirs:
            at = next((i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), min(len(ours), len(theirs)))
            here, there = (tokenizer.decode(list(ids[at : at + 8])) for ids in (ours, theirs))
            raise RenderError(
                f"renderer and chat template differ on fixture {fixture.name!r} at id {at}: {here!r}, by the template {there!r}"
            )


def _by_template(tokenizer: PreTrainedTokenizerBase, fixture: Conversation) -> Ids:
    text = tokenizer.apply_chat_template(
        list(fixture.messages), tools=list(fixture.tools) or None, tokenize=False, add_generation_prompt=True
    )
    return tuple(tokenizer.encode(str(text), add_special_tokens=False))


def _last_end_of_turn(rendered: RenderedTokens, message: int, end_of_turn: int) -> int:
    """Where the turn of ``message`` ends. The last one counts: the message's own text may hold the token too."""
    ids, owners = rendered.token_ids, rendered.message_indices
    for at in range(len(ids) - 1, -1, -1):
        if ids[at] == end_of_turn and owners[at] == message:
            return at
    raise RenderError(f"message {message} was rendered without an end-of-turn token; no hint can be put into it")
