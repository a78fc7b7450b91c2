"""A hub with two states of a small model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hub_server import Hub
from tests.integration.hub.parts import NEW, OLD, REPOSITORY, model


@pytest.fixture
def hub() -> Hub:
    return Hub(REPOSITORY, {OLD: model("old"), NEW: model("new")}, {"main": OLD, "v2/rc": NEW})


@pytest.fixture
def url(hub: Hub) -> Iterator[str]:
    with hub.serving() as address:
        yield address


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "models/tiny/hf"
