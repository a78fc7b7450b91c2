"""The server's command line: as a golden text, and against the recorded flags of both versions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from openclaw_core.config import ConfigError, RunConfig, load_config
from openclaw_core.engines.protocol import EngineError
from openclaw_core.engines.sglang.command import (
    ServerAt,
    ServerCommand,
    ServerKey,
    check_context_length,
    engine_command,
    judge_command,
)
from tests.sglang_contract.__main__ import parser
from tests.sglang_contract.contract import VERSIONS, Contract

GOLDEN = Path(__file__).parents[1] / "golden"

NPU = {
    "engine.sglang.tensor_parallel": 2,
    "engine.sglang.devices": [4, 5, 6, 7],
    "engine.sglang.network_interface": "eth0",
    "engine.sglang.environment": {"HCCL_BUFFSIZE": "120"},
}
OTHER_DEVICE = {
    "engine.sglang.devices": [],
    "engine.sglang.tensor_parallel": 1,
    "engine.sglang.attention_backend": None,
    "engine.sglang.page_size": None,
}
"""What the preset states for NPUs is left to the device."""
CUDA = OTHER_DEVICE | {
    "engine.sglang.device": "cuda",
    "engine.sglang.fp32_lm_head": False,
    "engine.sglang.extra_args": ["--log-level", "warning"],
}
CPU = OTHER_DEVICE | {"engine.sglang.device": "cpu", "engine.dtype": "fp32"}


def _config(overrides: dict[str, Any]) -> RunConfig:
    return load_config("4b-2nodes", {"engine.backend": "sglang", **overrides})


def _command(directory: Path, overrides: dict[str, Any], *, index: int = 0) -> ServerCommand:
    launcher = ("python", "-m", "sglang.launch_server")
    return engine_command(_config(overrides), directory, index=index, version=4, launcher=launcher)


def _text(command: ServerCommand, directory: Path) -> str:
    lines = [f"{key}={value}" for key, value in sorted(command.environment.items())]
    return "\n".join([*lines, " ".join(command.arguments).replace(str(directory), "MODEL").replace(" --", "\n--")]) + "\n"


@pytest.mark.parametrize(("name", "overrides", "index"), [("npu", NPU, 1), ("cuda", CUDA, 0), ("cpu", CPU, 0)])
def test_the_command_line_is_the_golden_one(tmp_path: Path, name: str, overrides: dict[str, Any], index: int) -> None:
    command = _command(tmp_path, overrides, index=index)
    assert _text(command, tmp_path) == (GOLDEN / f"sglang_{name}.txt").read_text()


@pytest.mark.parametrize("version", VERSIONS)
def test_a_judges_command_line_is_the_golden_one_and_does_not_show_its_key(tmp_path: Path, version: str) -> None:
    at = ServerAt("10.0.0.2", tuple(range(8)), ServerKey("sk-judge", Path("runs/r/judge-prm.yaml")))
    config = load_config("4b-2nodes", {"judge.server.context_length": 40_000})
    command = judge_command(config, tmp_path, at=at, launcher=("python", "-m", "sglang.launch_server"))
    assert _text(command, tmp_path) == (GOLDEN / "sglang_judge.txt").read_text()
    assert "sk-judge" not in f"{command}{at}"
    parser(Contract.load(version)).parse_args(command.arguments[command.arguments.index("--config") :])


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("overrides", [NPU, CUDA, CPU])
def test_every_flag_exists_in_both_versions_and_takes_its_value(
    tmp_path: Path, version: str, overrides: dict[str, Any]
) -> None:
    arguments = _command(tmp_path, overrides).arguments
    parsed = parser(Contract.load(version)).parse_args(arguments[arguments.index("--model-path") :])
    assert parsed.context_length == 65536 + 8
    assert parsed.device == overrides.get("engine.sglang.device", "npu")
    assert parsed.page_size == (128 if parsed.device == "npu" else None)


def test_the_context_leaves_the_positions_that_sglang_keeps_for_itself(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"max_position_embeddings": 65536}))
    with pytest.raises(EngineError, match="set it to 65528 at most"):
        check_context_length(_config({}), tmp_path)
    check_context_length(_config({"model.context_length": 65528}), tmp_path)


def test_a_page_size_that_corrupts_answers_is_refused() -> None:
    with pytest.raises(ConfigError, match="corrupts answers on npu"):
        _config({"engine.sglang.page_size": 16})
    assert _config({"engine.sglang.page_size": 64, "engine.sglang.device": "cuda"}).engine.sglang.page_size == 64


def test_engines_do_not_take_a_port_of_the_run() -> None:
    with pytest.raises(ConfigError, match=r"ports\.gateway=30011"):
        _config({"engine.sglang.port": 30010, "engine.count": 2, "ports.gateway": 30011})
