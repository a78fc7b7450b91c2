"""A gateway with a tiny model's real renderer and engine, for the tests of what it answers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from openclaw_core.engines.local import LocalEngine
from openclaw_core.gateway.rendering import ChatRenderer
from tests.environment import Ask, silent
from tests.gateway_parts import Gateway, assemble


@pytest.fixture(scope="session")
def renderer(tiny_llama_dir: Path) -> ChatRenderer:
    return ChatRenderer.from_pretrained(tiny_llama_dir)


@pytest.fixture
async def engine(tiny_llama_dir: Path) -> AsyncIterator[LocalEngine]:
    # A prefix that is read and not computed may round otherwise, so the same seed could give another answer.
    engine = LocalEngine(tiny_llama_dir, threads=1, version=3, prefix_cache_tokens=0)
    yield engine
    engine.close()


@pytest.fixture
def gateway(renderer: ChatRenderer, engine: LocalEngine) -> Gateway:
    return assemble(renderer, engine)


@pytest.fixture
def say(monkeypatch: pytest.MonkeyPatch) -> Ask:
    """Sets variables in an environment that says nothing else."""
    return silent(monkeypatch)
