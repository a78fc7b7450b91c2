"""What the openclaw CLI is told, and which CLI it is."""

from __future__ import annotations

import json
import stat
import sys
from pathlib import Path
from typing import Any

import pytest

from openclaw_core.config import ConfigError, load_config
from openclaw_core.config.feedback import OpenClawCLIConfig
from openclaw_core.config.schema import RunConfig
from openclaw_core.feeder.errors import FeederError
from openclaw_core.feeder.openclaw_config import PLUGIN, Gateway, StateDir, cli_config, environment
from openclaw_core.feeder.openclaw_install import INSTALLED, OPENCLAW_VERSION, REPOSITORY, Installation

GATEWAY = Gateway("http://127.0.0.1:30000/v1", "sk-secret")


def config(**overrides: Any) -> RunConfig:
    values = {"model.context_length": 32_768, "rollout.max_response_tokens": 500, "feeder.driver": "openclaw_cli"}
    return load_config("local-cpu", values | {name.replace("__", "."): value for name, value in overrides.items()})


def told(**overrides: Any) -> dict[str, Any]:
    return cli_config(config(**overrides), GATEWAY, Path("/w"))


def test_model_is_the_gateways() -> None:
    provider = told()["models"]["providers"]["openclaw-rl"]
    assert (provider["baseUrl"], provider["apiKey"]) == (GATEWAY.base_url, GATEWAY.api_key)
    (model,) = provider["models"]
    assert (model["id"], model["contextWindow"], model["maxTokens"]) == ("SmolLM2-135M-Instruct", 32_768, 500)


@pytest.mark.parametrize(
    ("tools", "expected"),
    [
        ([], {"deny": ["*"]}),
        (["read", "write"], {"allow": ["read", "write"], "fs": {"workspaceOnly": True}}),
        (
            ["exec"],
            {
                "allow": ["exec"],
                "fs": {"workspaceOnly": True},
                "exec": {"host": "gateway", "security": "full", "ask": "off"},
            },
        ),
    ],
)
def test_tools_are_those_that_are_allowed(tools: list[str], expected: dict[str, Any]) -> None:
    assert told(feeder__cli__tools=tools)["tools"] == expected


def test_nothing_of_the_clis_own_disturbs_a_session() -> None:
    """No bootstrap files, no turns of its own, no giving up on a held request, no summary before the context is full."""
    defaults = told()["agents"]["defaults"]
    assert defaults["skipBootstrap"]
    assert defaults["llm"] == {"idleTimeoutSeconds": 0}
    compaction = defaults["compaction"]
    assert compaction["memoryFlush"] == {"enabled": False}
    assert (compaction["reserveTokensFloor"], compaction["reserveTokens"]) == (0, 1524)
    assert compaction["keepRecentTokens"] == 8192


def test_plugin_is_loaded_from_the_package_and_told_the_gateway() -> None:
    plugins = told(feeder__cli__system_prompt="Be brief.")["plugins"]
    assert plugins["load"]["paths"] == [str(PLUGIN)]
    assert plugins["entries"]["openclaw-rl"]["config"] == {"baseUrl": GATEWAY.base_url, "systemPrompt": "Be brief."}
    assert "systemPrompt" not in told()["plugins"]["entries"]["openclaw-rl"]["config"]
    assert {file.name for file in PLUGIN.iterdir()} == {"index.js", "openclaw.plugin.json", "package.json"}


def test_no_text_is_taken_for_a_variable() -> None:
    prompt = told(feeder__cli__system_prompt="Costs ${HOME}")["plugins"]["entries"]["openclaw-rl"]["config"]["systemPrompt"]
    assert prompt == "Costs $${HOME}"


def test_a_state_folder_is_its_owners_only(tmp_path: Path) -> None:
    state = StateDir(tmp_path / "a/b")
    state.create(told())
    assert stat.S_IMODE(state.path.stat().st_mode) == 0o700
    assert stat.S_IMODE(state.config_file.stat().st_mode) == 0o600
    assert json.loads(state.config_file.read_text()) == told()


def test_environment_is_whole_and_holds_no_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-other")
    env = environment(Installation(tmp_path / "bin/node", tmp_path / "openclaw.mjs"), StateDir(tmp_path), tmp_path / "cache")
    assert env["PATH"].startswith(f"{tmp_path}/bin:")
    assert {env["HOME"], env["OPENCLAW_STATE_DIR"]} == {str(tmp_path)}
    assert not [value for value in env.values() if "sk-" in value]


@pytest.mark.parametrize(
    ("overrides", "complaint"),
    [
        ({"model__context_length": 1024}, "needs a context of 16000 or more, and model.context_length is 1024"),
        ({"feeder__cli__context_window": 8000}, "feeder.cli.context_window"),
        ({"feeder__cli__tools": ["browser"]}, "feeder.cli.tools"),
    ],
)
def test_what_the_cli_would_refuse_is_refused_before(overrides: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        config(**overrides)


def package(folder: Path, version: str = OPENCLAW_VERSION) -> Path:
    folder.mkdir(parents=True)
    (folder / "package.json").write_text(json.dumps({"version": version}))
    (folder / "openclaw.mjs").touch()
    return folder


def node(folder: Path, version: str) -> Path:
    file = folder / "node"
    file.write_text(f"#!{sys.executable}\nprint({version!r})\n")
    file.chmod(0o755)
    return file


def test_configured_installation_is_used(tmp_path: Path) -> None:
    found = Installation.find(OpenClawCLIConfig(node=node(tmp_path, "v22.14.0"), package=package(tmp_path / "openclaw")))
    assert found == Installation(tmp_path / "node", tmp_path / "openclaw/openclaw.mjs")


def test_installation_on_the_path_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("openclaw_core.feeder.openclaw_install.INSTALLED", tmp_path / "nothing")
    script = package(tmp_path / "lib/node_modules/openclaw") / "openclaw.mjs"
    script.chmod(0o755)
    (tmp_path / "openclaw").symlink_to(script)
    node(tmp_path, "v24.1.0")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert Installation.find(OpenClawCLIConfig()) == Installation(tmp_path / "node", script)


@pytest.mark.parametrize(
    ("version", "cli", "complaint"),
    [
        ("v20.20.2", OPENCLAW_VERSION, r"is Node v20\.20\.2; openclaw needs 22\.14 or newer: run `make openclaw-cli`"),
        ("v22.13.9", OPENCLAW_VERSION, r"is Node v22\.13\.9"),
        ("nonsense", OPENCLAW_VERSION, "is Node nonsense"),
        ("v22.14.0", "2026.9.6", r"is openclaw 2026\.9\.6; only 2026\.3\.31 is supported: run `make openclaw-cli`"),
        ("v22.14.0", None, "the openclaw CLI is not at .*: run `make openclaw-cli`"),
        (None, OPENCLAW_VERSION, "Node is not at .*: run `make openclaw-cli`"),
    ],
)
def test_another_version_or_none_is_refused(tmp_path: Path, version: str | None, cli: str | None, complaint: str) -> None:
    folder = tmp_path / "openclaw"
    if cli is not None:
        package(folder, cli)
    given = tmp_path / "node" if version is None else node(tmp_path, version)
    with pytest.raises(FeederError, match=complaint):
        Installation.find(OpenClawCLIConfig(node=given, package=folder))


def test_make_installs_the_version_that_is_supported() -> None:
    makefile = (REPOSITORY / "Makefile").read_text()
    assert f"\nOPENCLAW_VERSION := {OPENCLAW_VERSION}\n" in makefile
    assert f"\nCLI := {INSTALLED.relative_to(REPOSITORY)}\n" in makefile
