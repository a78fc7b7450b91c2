"""An answer's tokens → what the client sees of them, as soon as it is certain: reasoning, text, stop strings.

Engines stop at token ids only. A stop string ends the answer at the token that completes it; its text is not shown, but
the token stays: it was sampled, and it ends the turn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from itertools import groupby

import structlog

from openclaw_core.engines.protocol import Tokens, TopLogprobs
from openclaw_core.gateway.parsing import Answer, ToolMode
from openclaw_core.gateway.rendering import ChatRenderer
from openclaw_core.types import FinishReason

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A sampled token, its log-prob, and the alternatives where they were asked for."""

    token_id: int
    logprob: float
    top: TopLogprobs = ()


@dataclass(frozen=True, slots=True)
class Delta:
    """What is new of an answer. ``tokens``: those behind it, and behind what is still held back."""

    content: str = ""
    reasoning: str = ""
    tokens: tuple[TokenLogprob, ...] = ()


@dataclass(slots=True)
class Sampled:
    """Everything that was sampled for one answer so far."""

    tokens: list[TokenLogprob] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    """Of the weights that each token was sampled with."""
    finish_reason: FinishReason | None = None

    @property
    def token_ids(self) -> tuple[int, ...]:
        """[T], the stop token included."""
        return tuple(token.token_id for token in self.tokens)

    @property
    def logprobs(self) -> tuple[float, ...]:
        """[T] at the request's temperature."""
        return tuple(token.logprob for token in self.tokens)

    @property
    def version_spans(self) -> tuple[tuple[int, int], ...]:
        """(version, number of tokens), in order."""
        return tuple((version, len(list(run))) for version, run in groupby(self.versions))


class _Part(Enum):
    """Which part of an answer the next token belongs to."""

    CONTENT = auto()
    REASONING = auto()
    UNCLEAR = auto()
    """A tool call opens inside the reasoning: the reasoning ends there, unless its closing token comes after all."""
    TOOLS = auto()
    """From the first tool call on, it takes the whole answer to tell calls from text."""


class AnswerStream:
    """Follows one answer. ``feed`` and ``finish`` give what became visible; what they gave adds up to ``answer``."""

    def __init__(
        self, renderer: ChatRenderer, prompt_ids: Sequence[int], stop: Sequence[str], tools: ToolMode = ToolMode.AUTO
    ) -> None:
        self.sampled = Sampled()
        self._renderer, self._prompt_ids, self._tools = renderer, prompt_ids, tools
        self._sections = renderer.sections
        self._content = _Visible(renderer.decode, strip=self._sections.strip, stop=stop)
        self._reasoning = _Visible(renderer.decode, strip=self._sections.strip)
        self._part = _Part.REASONING if renderer.starts_in_reasoning(prompt_ids) else _Part.CONTENT
        self._unclear: list[int] = []
        self._opened = False
        self._shown = 0
        """Tokens that went out with a delta."""

    def feed(self, tokens: Tokens) -> Delta | None:
        """What an engine's tokens add; None where nothing is certain yet. Those after a stop string are dropped."""
        content = reasoning = ""
        for index, (token, logprob) in enumerate(zip(tokens.token_ids, tokens.logprobs, strict=True)):
            top = tokens.top_logprobs[index] if tokens.top_logprobs else ()
            self.sampled.tokens.append(TokenLogprob(token, logprob, top))
            self.sampled.versions.append(tokens.weight_version)
            for part, visible in self._sort(token):
                if part is _Part.REASONING:
                    reasoning += self._reasoning.feed(visible)
                else:
                    content += self._content.feed(visible)
            if self._content.stopped:
                self.sampled.finish_reason = FinishReason.STOP
                return self._delta(content, reasoning)
        self.sampled.finish_reason = tokens.finish_reason
        return self._delta(content, reasoning) if content or reasoning else None

    def finish(self) -> tuple[Answer, Delta]:
        """The whole answer, and what of it had been held back."""
        answer = self._renderer.parse(self.sampled.token_ids, self._prompt_ids, self._tools)
        if self._content.stopped:
            answer = replace(answer, text=self._content.text, tool_calls=())
        if answer.tool_calls:
            self.sampled.finish_reason = FinishReason.TOOL_CALLS
        content, reasoning = self._rest(self._content, answer.text), self._rest(self._reasoning, answer.reasoning or "")
        return answer, self._delta(content, reasoning)

    def _sort(self, token: int) -> list[tuple[_Part, int]]:
        """The tokens of which it is clear now that they are visible, and where. As ``parsing.parse`` sorts them."""
        sections, part = self._sections, self._part
        if token in self._renderer.stop_token_ids or part is _Part.TOOLS:
            return []
        if part is _Part.UNCLEAR:
            if token != sections.reasoning_close:
                self._unclear.append(token)
                return []
            self._part = _Part.CONTENT
            return [(_Part.REASONING, held) for held in self._unclear]
        if token == sections.reasoning_open and self._opens_reasoning():
            self._part = _Part.REASONING
        elif part is _Part.REASONING and token == sections.reasoning_close:
            self._part = _Part.CONTENT
        elif part is _Part.REASONING and token == sections.tool_open:
            self._part, self._unclear = _Part.UNCLEAR, [token]
        elif part is _Part.CONTENT and (
            self._tools is ToolMode.FORCED or (self._tools is ToolMode.AUTO and token == sections.tool_open)
        ):
            self._part = _Part.TOOLS
        else:
            return [(part, token)]
        return []

    def _opens_reasoning(self) -> bool:
        """Whether the first opening token has nothing but white space before it."""
        first, self._opened = not self._opened, True
        return first and not self._renderer.decode(self.sampled.token_ids[:-1]).strip()

    def _rest(self, visible: _Visible, whole: str) -> str:
        if whole.startswith(visible.text):
            return whole[len(visible.text) :]
        log.error("stream_differs", shown=len(visible.text), parsed=len(whole), tokens=len(self.sampled.tokens))
        return ""

    def _delta(self, content: str, reasoning: str) -> Delta:
        tokens = tuple(self.sampled.tokens[self._shown :])
        self._shown = len(self.sampled.tokens)
        return Delta(content, reasoning, tokens)


class _Visible:
    """The text of one section. Held back: half a character, white space at the edges, what may become a stop string."""

    def __init__(self, decode: Callable[[list[int]], str], *, strip: bool, stop: Sequence[str] = ()) -> None:
        self.text = ""
        """Shown so far."""
        self.stopped = False
        self._decode, self._strip, self._stop = decode, strip, stop
        self._ids: list[int] = []
        self._window = self._read = 0
        self._held = ""

    def feed(self, token: int) -> str:
        """The text that this token makes certain."""
        text = self._held + self._decoded(token)
        self._held = ""
        if found := [at for stop in self._stop if (at := text.find(stop)) >= 0]:
            self.stopped = True
            text = text[: min(found)]
        else:
            text = self._hold(text)
        if self._strip and not self.text:
            text = text.lstrip()
        self.text += text
        return text

    def _decoded(self, token: int) -> str:
        """Decoded together with the token before it, since a character may be spread over tokens, and white space too."""
        self._ids.append(token)
        before = self._decode(self._ids[self._window : self._read])
        after = self._decode(self._ids[self._window :])
        if len(after) <= len(before) or after.endswith("\ufffd"):
            return ""
        self._window, self._read = self._read, len(self._ids)
        return after[len(before) :]

    def _hold(self, text: str) -> str:
        keep = len(text.rstrip()) if self._strip else len(text)
        for stop in self._stop:
            for length in range(min(len(stop) - 1, len(text)), 0, -1):
                if text.endswith(stop[:length]):
                    keep = min(keep, len(text) - length)
                    break
        self._held = text[keep:]
        return text[:keep]
