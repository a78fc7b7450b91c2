"""Where a run's engines are started."""

from __future__ import annotations

from pathlib import Path

import pytest

from openclaw_core.config import load_config
from openclaw_core.engines.protocol import EngineError
from openclaw_core.engines.start import engine_starts
from openclaw_core.rundir import RunDir


def test_sglang_on_another_host_than_the_heads_is_refused_and_not_started_on_the_head(tmp_path: Path):
    config = load_config("32b-8nodes")
    with pytest.raises(
        EngineError, match="engines on rollout-1, rollout-2: in this version SGLang is started on the head master only"
    ):
        engine_starts(config, RunDir(tmp_path), tmp_path)


def test_sglang_on_the_head_is_started(tmp_path: Path):
    assert [name for name, _ in engine_starts(load_config("4b-2nodes"), RunDir(tmp_path), tmp_path)] == ["engine-0"]
