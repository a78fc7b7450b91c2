"""Who sees what the environment says: commands, a flow run, the gateway."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from flows import launcher
from flows.parameters import open_run, resolve_config
from openclaw_core.cli import app
from openclaw_core.config import ConfigError, RunConfig, load_config
from openclaw_core.engines.local import LocalEngine
from openclaw_core.feeder.client import GatewayClient
from openclaw_core.gateway.rendering import ChatRenderer
from openclaw_core.rundir import create_run
from tests.environment import Ask
from tests.gateway_parts import assemble, tiny_config, user
from tests.ports import free_ports

pytestmark = pytest.mark.usefixtures("say")
ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("command", [["config"], ["plan", "--preset", "4b-2nodes", "--json"]])
def test_commands_tell_it_beside_their_output(
    say: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    say(OPENCLAW_TOPK_K="6")
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0
    assert result.stderr == "from the environment: OPENCLAW_TOPK_K=6 → loss.topk=6\n"
    if command == ["config"]:
        assert "loss.topk=6" in result.stdout.splitlines()
    else:
        assert json.loads(result.stdout)["fits"]


@pytest.mark.parametrize("command", ["config", "plan", "doctor"])
def test_commands_refuse_a_name_that_nobody_knows(
    say: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.chdir(tmp_path)
    say(OPENCLAW_TOPKK="6")
    result = CliRunner().invoke(app, [command])
    assert isinstance(result.exception, ConfigError) and "did you mean OPENCLAW_TOPK_K?" in str(result.exception)
    assert list(tmp_path.iterdir()) == []


def test_a_run_is_not_begun_with_a_name_that_nobody_knows(say: Ask, tmp_path: Path) -> None:
    say(OPENCLAW_TOPKK="6", PYTHONPATH=str(ROOT))
    command = [sys.executable, "-m", "openclaw_core.cli", "run"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 2
    assert ended.stderr == "error: OPENCLAW_TOPKK: there is no such name; did you mean OPENCLAW_TOPK_K? Else unset it\n"
    assert list(tmp_path.iterdir()) == []


class NoPrefect:
    """In place of a server and a worker."""

    def __init__(self, state: Path, port: int) -> None:
        self.ui, self.api = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{port}/api"

    def start(self, config: RunConfig) -> None:
        self.config = config


def test_make_run_hands_the_environment_to_its_flow_run(say: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Any] = []

    def create(client: Any, preset: str, steps: int | None, overrides: dict[str, Any]) -> None:
        given.extend((steps, overrides))
        raise ConfigError("enough")

    monkeypatch.setattr(launcher, "LocalPrefect", NoPrefect)
    monkeypatch.setattr(launcher, "get_client", lambda sync_client: nullcontext())
    monkeypatch.setattr(launcher, "_create_run", create)
    ports = free_ports()
    settings = [part for name, port in ports.items() for part in ("--set", f"{name}={port}")]
    say(PRM_M="5", NUM_ROLLOUT="7", SAVE_CKPT=str(tmp_path / "ckpt"))
    shown = CliRunner().invoke(launcher.app, ["run", "--state", str(tmp_path), *settings]).output
    runs = {"paths.runs": str(tmp_path / "ckpt")}
    assert given == [None, {"judge.votes": 5, "train.steps": 7, **runs, **ports}]
    assert json.loads(json.dumps(given)) == given
    assert "From the environment: NUM_ROLLOUT=7 → train.steps=7\n" in shown

    given.clear()
    shown = CliRunner().invoke(launcher.app, ["run", "--state", str(tmp_path), "--steps", "2", *settings]).output
    assert given == [2, {"judge.votes": 5, "train.steps": 2, **runs, **ports}]
    assert resolve_config("local-cpu", given[0], overrides=given[1]).train.steps == 2
    assert "NUM_ROLLOUT=7 → no effect, for train.steps=2 of the command line counts" in shown


def test_a_flow_goes_by_its_parameters_whatever_the_worker_was_started_in(say: Ask) -> None:
    say(PRM_M="5", OPENCLAW_NOBODY="knows")
    assert resolve_config("local-cpu") == load_config("local-cpu")


def test_the_gateway_takes_the_key_that_clients_have(say: Ask, tmp_path: Path) -> None:
    parameters = {"preset": "local-cpu", "run_id": "r", "overrides": {"paths.runs": str(tmp_path)}}
    bare = open_run(parameters, "0").secrets()
    assert list(bare.all_keys) == ["run"]
    say(SGLANG_API_KEY="sk-mine")
    run = open_run(parameters, "0")
    assert run.secrets() == replace(bare, named_keys={"SGLANG_API_KEY": "sk-mine"})
    assert "sk-mine" not in run.config_file.read_text()
    fresh = create_run(run.config(), "s", client_keys={"SGLANG_API_KEY": "sk-mine"}).secrets()
    assert fresh.all_keys == {"run": fresh.api_key, "SGLANG_API_KEY": "sk-mine"}


async def test_clients_see_the_name_that_the_model_is_served_under(renderer: ChatRenderer, engine: LocalEngine) -> None:
    gateway = assemble(renderer, engine, tiny_config(model__served_name="qwen3-4b"))
    assert [model["id"] for model in (await gateway.client.get("/v1/models")).json()["data"]] == ["qwen3-4b"]
    assert (await gateway.chat([user("Hi")])).status_code == 404
    answer = await gateway.chat([user("Hi")], model="qwen3-4b")
    assert (answer.status_code, answer.json()["model"]) == (200, "qwen3-4b")


async def test_the_simulated_people_ask_for_that_name(monkeypatch: pytest.MonkeyPatch) -> None:
    client = GatewayClient(tiny_config(model__served_name="qwen3-4b"), "http://127.0.0.1:9/v1", "sk-test")
    assert client._model == "qwen3-4b"  # pyright: ignore[reportPrivateUsage]
    await client.aclose()
