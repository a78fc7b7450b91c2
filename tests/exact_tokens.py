"""Walks through sessions with a sampler that throws dice over the whole vocabulary, and checks every id on the way.

What is checked of each turn: the prompt is what the model's own chat template gives; or, bridged, it is the stored ids of the
turn before and then what the template writes after an answer. Whatever was sampled can be parsed, at any length. A hint goes
in right after the last user message and comes out again without a trace.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

from openclaw_core.gateway.rendering import Answer, ChatRenderer, Rendering, splice, unsplice
from openclaw_core.gateway.schema import parse_chat
from openclaw_core.types import Message

WORDS = (
    "How many apples are left?",
    "naïve café, e\u0301 ≠ é",
    "你好，三加二等于几？",
    "👩‍👩‍👧‍👦 🏳️‍🌈 \U0001f9ff\ufe0f",
    "مرحبا \u202eabc\u202c \u200b\ufeff",
    " \t leading and trailing \n\n",
    "\x00\x01\x7f\x85\u2028\u2029",
    "\U0010fffd\ue000 ﷽ Z͑͗̎a͐",
    "what does <|im_end|>\n<|im_start|>system mean, and <think> or </think>?",
    '<tool_call>\n{"name": "add", "arguments": {}}\n</tool_call>',
    "1,234.5 + 678 = ?\r\n\r\n",
    "```python\n\tprint('<|endoftext|>')\n```",
    "",
)

TOOLS: tuple[dict[str, Any], ...] = (
    {
        "type": "function",
        "function": {
            "name": "add",
            "description": "Adds — 'a' & <b>, à la carte.",
            "parameters": {"type": "object", "properties": {"a": {"type": "number"}, "数": {"type": "string"}}},
        },
    },
    {"type": "function", "function": {"name": "find_it-2"}},
)

PLACEHOLDER = "x"


class Walk:
    """Sessions with one renderer. ``seen`` counts what happened, so that a test can tell that it all did."""

    def __init__(self, renderer: ChatRenderer, *, tools: bool, seed: int) -> None:
        self.renderer, self.tokenizer = renderer, renderer.tokenizer
        self.tools = TOOLS if tools else ()
        self.dice = random.Random(seed)
        self.seen: Counter[str] = Counter()
        self.vocabulary = sorted(self.tokenizer.get_vocab().values())
        self.special = sorted(self.tokenizer.added_tokens_decoder)

    def session(self, turns: int) -> None:
        """One session."""
        messages: list[Message] = [{"role": "system", "content": self._words()}] if self.dice.random() < 0.4 else []
        new: list[Message] = [self.user()]
        previous: tuple[Rendering, tuple[int, ...]] | None = None
        for _ in range(turns):
            messages = self._through_the_gateway([*messages, *new])
            prompt = self._prompt(messages, new, previous)
            self._check_hint(prompt, messages)
            response = self.sample()
            answer = self._parse(prompt, response)
            previous = prompt, response
            messages = [*messages, answer.message]
            new = self.reaction(answer)

    def _prompt(
        self, messages: list[Message], new: list[Message], previous: tuple[Rendering, tuple[int, ...]] | None
    ) -> Rendering:
        rendered = self.renderer.render(messages, self.tools)
        assert rendered.prompt_ids == self.by_template(messages)
        if previous is None:
            return rendered
        before, response = previous
        bridged = self.renderer.bridge(before, response, new, self.tools)
        if bridged is None:
            self.seen["not bridged"] += 1
            return rendered
        self.seen["bridged"] += 1
        stored = (*before.prompt_ids, *response)
        assert bridged.prompt_ids[: len(stored)] == stored
        assert bridged.prompt_ids[len(stored) :] == self._after_an_answer(messages[: -len(new)], new)
        return bridged

    def by_template(self, messages: list[Message]) -> tuple[int, ...]:
        """The ids of the model's own template; an answer's header is encoded on its own, as a sampler gets it."""
        text = self._template_text(messages)
        if self.renderer.sections.reasoning_open is None:
            return self._encode(text)
        header = "<|im_start|>assistant\n"
        first, *rest = text.split(header)
        ids = list(self._encode(first))
        for piece in rest:
            ids += [*self._encode(header), *self._encode(piece)]
        return tuple(ids)

    def _after_an_answer(self, history: list[Message], new: list[Message]) -> tuple[int, ...]:
        """What the template writes after the end-of-turn token of the last answer of ``history``."""
        text = self._template_text([*history[:-1], {"role": "assistant", "content": PLACEHOLDER}, *new])
        return self._encode(text.rpartition(f"{PLACEHOLDER}<|im_end|>")[2])

    def _template_text(self, messages: list[Message]) -> str:
        tools = list(self.tools) or None
        return str(self.tokenizer.apply_chat_template(messages, tools=tools, tokenize=False, add_generation_prompt=True))

    def _check_hint(self, prompt: Rendering, messages: list[Message]) -> None:
        last = [message["content"] for message in messages if message["role"] == "user"][-1]
        offset, hint = prompt.hint_offset, self.renderer.hint_ids(self._words(), "[hint]")
        assert offset is not None
        assert prompt.prompt_ids[offset] == self.renderer.stop_token_ids[0]
        before = self.tokenizer.decode(list(prompt.prompt_ids[:offset]), skip_special_tokens=False)
        assert before.endswith(self.tokenizer.decode(list(self._encode(f"user\n{last}")), skip_special_tokens=False))
        spliced = splice(prompt.prompt_ids, offset, hint)
        assert spliced[offset : offset + len(hint)] == hint
        assert unsplice(spliced, offset, hint) == prompt.prompt_ids
        self.seen["hint before the last turn"] += messages[-1]["role"] == "tool"

    def sample(self) -> tuple[int, ...]:
        """Ids of an answer: pieces that a model would write, and pieces that none would."""
        ids: list[int] = []
        for _ in range(self.dice.randint(0, 5)):
            ids += self.dice.choice((self._text_ids, self._any_ids, self._special_ids, self._section_ids))()
        if self.dice.random() < 0.3:
            ids = [*self._opening(), *ids]
        ids = [token for token in ids if token not in self.renderer.stop_token_ids]  # an engine goes no further
        return tuple(ids) if self.dice.random() < 0.15 else (*ids, self.renderer.stop_token_ids[0])

    def _text_ids(self) -> list[int]:
        return list(self._encode(self._words()))

    def _any_ids(self) -> list[int]:
        return [self.dice.choice(self.vocabulary) for _ in range(self.dice.randint(1, 12))]

    def _special_ids(self) -> list[int]:
        return [self.dice.choice(self.special) for _ in range(self.dice.randint(1, 3))]

    def _section_ids(self) -> list[int]:
        call = self.dice.choice(
            (
                '\n{"name": "add", "arguments": {"a": 2,  "数": "三 👩‍👩‍👧"}}\n',
                '{"name":"find_it-2"}',
                '\n{"name": "add", "arguments": "{\\"a\\": 1}"}\n',
                '\n{"arguments": {"a": 1e999}, "name": "add"}\n',
                '\n{"name": "add", "arguments": {"a": "\\ud800"}}\n',
                '\n{"name": "add", "arguments": [1]}\n',
                "\n{not json\n",
            )
        )
        return list(self._encode(f"<tool_call>{call}</tool_call>" + self.dice.choice(("", "\n", "after"))))

    def _opening(self) -> list[int]:
        """Reasoning, closed or not, and then a call as a model writes it."""
        closing = self.dice.choice(("\n</think>\n\n", "</think>", ""))
        call = '<tool_call>\n{"name": "add", "arguments": {"a": 2}}\n</tool_call>'
        return list(self._encode(f"<think>\nhm {self._words()}{closing}Let me see.\n{call}"))

    def _parse(self, prompt: Rendering, response: tuple[int, ...]) -> Answer:
        for length in range(len(response)):
            self.renderer.parse(response[:length], prompt.prompt_ids)
        answer = self.renderer.parse(response, prompt.prompt_ids)
        assert answer == self.renderer.parse(response, prompt.prompt_ids)
        for call in answer.tool_calls:
            assert isinstance(json.loads(call.arguments), dict)
        self.seen["calls"] += bool(answer.tool_calls)
        self.seen["reasoning"] += answer.reasoning is not None
        self.seen["text"] += bool(answer.text)
        return answer

    def reaction(self, answer: Answer) -> list[Message]:
        """What a client says next: results of the calls, mostly, or another question."""
        if answer.tool_calls and self.dice.random() < 0.9:
            return [{"role": "tool", "content": self._words(), "tool_call_id": call.id} for call in answer.tool_calls]
        return [self.user()]

    def _through_the_gateway(self, messages: Sequence[Message]) -> list[Message]:
        """As a client sends them: nothing is lost, nothing is added."""
        request, plain = parse_chat(json.dumps({"model": "m", "messages": messages, "tools": list(self.tools)}).encode())
        assert list(plain) == list(messages)
        assert request.offered_tools == self.tools
        return list(plain)

    def user(self) -> Message:
        """A question."""
        return {"role": "user", "content": self._words()}

    def _words(self) -> str:
        return "".join(self.dice.choice(WORDS) for _ in range(self.dice.randint(1, 3)))

    def _encode(self, text: str) -> tuple[int, ...]:
        return tuple(self.tokenizer.encode(text, add_special_tokens=False))
