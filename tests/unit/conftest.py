"""A gateway with a tiny model's real renderer and engine, for the tests of what it answers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from openclaw_core.engines.local import LocalEngine
from openclaw_core.gateway.rendering import ChatRenderer
from tests.gateway_parts import Gateway, assemble


@pytest.fixture(scope="session")
def renderer(tiny_llama_dir: Path) -> ChatRenderer:
    return ChatRenderer.from_pretrained(tiny_llama_dir)


@pytest.fixture
async def engine(tiny_llama_dir: Path) -> AsyncIterator[LocalEngine]:
    engine = LocalEngine(tiny_llama_dir, threads=1, version=3)
    yield engine
    engine.close()


@pytest.fixture
def gateway(renderer: ChatRenderer, engine: LocalEngine) -> Gateway:
    return assemble(renderer, engine)
