"""Multi-turn sessions, id for id: prompts as the template writes them, answers as they were sampled."""

from __future__ import annotations

from pathlib import Path

import pytest

from openclaw_core.gateway.families import ChatMLRenderer, Qwen3FamilyRenderer, Qwen3ThinkingRenderer
from openclaw_core.gateway.rendering import ChatRenderer, check_template
from tests.exact_tokens import Walk
from tests.models import tiny_tokenizer
from tests.qwen3_form import tiny_qwen3_tokenizer

SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"


def walked(renderer: ChatRenderer, *, tools: bool, sessions: int = 40) -> Walk:
    walk = Walk(renderer, tools=tools, seed=7)
    for _ in range(sessions):
        walk.session(turns=5)
    return walk


def tiny(family: str) -> ChatRenderer:
    if family == "chatml":
        tokenizer = tiny_tokenizer()
        return ChatRenderer(tokenizer, ChatMLRenderer(tokenizer, SYSTEM))
    tokenizer = tiny_qwen3_tokenizer(thinking=family == "thinking")
    renderer = (Qwen3ThinkingRenderer if family == "thinking" else Qwen3FamilyRenderer)(tokenizer)  # pyright: ignore[reportArgumentType]
    return ChatRenderer(tokenizer, renderer)


@pytest.mark.parametrize("family", ["qwen3", "thinking"])
@pytest.mark.parametrize("tools", [True, False])
def test_qwen3_sessions_are_exact(family: str, tools: bool) -> None:
    renderer = tiny(family)
    check_template(renderer, renderer.tokenizer)
    seen = walked(renderer, tools=tools).seen
    assert min(seen[what] for what in ("bridged", "not bridged", "calls", "reasoning", "text", "hint before the last turn")) > 5


def test_chatml_sessions_are_exact() -> None:
    seen = walked(tiny("chatml"), tools=False).seen
    assert min(seen[what] for what in ("bridged", "not bridged", "text")) > 5
    assert seen["calls"] == 0


@pytest.mark.model
def test_smollm2_sessions_are_exact(smollm2: Path) -> None:
    seen = walked(ChatRenderer.from_pretrained(smollm2), tools=False).seen
    assert min(seen[what] for what in ("bridged", "not bridged", "text")) > 5
