"""A real Prefect server and worker for the drills, which share them; each drill is a run of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from prefect.settings import PREFECT_API_URL, temporary_settings

from flows.local_prefect import LocalPrefect, stop_prefect
from openclaw_core.config import load_config
from tests.drills.going import Going, leftovers
from tests.ports import free_ports

Start = Callable[..., Going]


@pytest.fixture(scope="session")
def prefect(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalPrefect]:
    """As `make up` starts it."""
    state = tmp_path_factory.mktemp("drills")
    config = load_config("local-cpu", free_ports())
    prefect = LocalPrefect(state, config.ports.prefect)
    with temporary_settings({PREFECT_API_URL: prefect.api}):
        try:
            prefect.start(config)
            yield prefect
        finally:
            stop_prefect(state)
    assert not leftovers(state)


@pytest.fixture
def start(prefect: LocalPrefect, tiny_llama_dir: Path) -> Iterator[Start]:
    """Starts a run of openclaw/local-cpu on a tiny model. Nothing of it may be left when the drill is over."""
    begun: list[Going] = []

    def start(steps: int, **settings: Any) -> Going:
        begun.append(Going(prefect, tiny_llama_dir, steps, settings))
        return begun[-1]

    yield start
    left = {going.run.run_id: found for going in begun if (found := leftovers(going.run.path))}
    for going in begun:
        going.end()
    assert not left
