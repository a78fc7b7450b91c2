"""Keys by name: the commands, the file that they change, and a gateway that is running meanwhile."""

from __future__ import annotations

import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs
from typer.testing import CliRunner

from openclaw_core.cli import app
from openclaw_core.gateway.rendering import ChatRenderer
from openclaw_core.keys import KeyFile, KeyNameError, add_key, remove_key
from openclaw_core.rundir import RunDir, RunDirError, create_run
from tests.gateway_parts import Gateway, assemble, tiny_config
from tests.gateway_world import ScriptedEngine


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return create_run(tiny_config(paths__runs=str(tmp_path / "runs")), "r")


def command(run: RunDir, *arguments: str) -> str:
    result = CliRunner().invoke(app, ["keys", arguments[0], str(run.path), *arguments[1:]], catch_exceptions=False)
    assert result.exit_code == 0
    return result.output.strip()


def test_a_key_is_printed_once_listed_by_its_end_and_removed(run: RunDir) -> None:
    own = run.secrets()
    key = command(run, "add", "ana")
    assert key.startswith("sk-") and key not in (own.api_key, own.control_token)
    assert run.secrets().all_keys == {"run": own.api_key, "ana": key}
    assert stat.S_IMODE(run.secrets_file.stat().st_mode) == 0o600
    other = command(run, "add", "lab-2.bot")
    assert other != key
    listed = command(run, "list")
    assert [line.split()[0] for line in listed.splitlines()] == ["run", "ana", "lab-2.bot"]
    assert f"…{key[-4:]}" in listed and key not in listed
    assert command(run, "remove", "ana") == "removed ana"
    assert run.secrets().named_keys == {"lab-2.bot": other}
    assert replace(run.secrets(), named_keys={}) == own


@pytest.mark.parametrize(
    ("change", "name", "words"),
    [
        (add_key, "ana", "has a key 'ana' already; choose another name"),
        (add_key, "run", "has a key 'run' already"),
        (add_key, "", "1 to 64 letters"),
        (add_key, "two words", "1 to 64 letters"),
        (remove_key, "bob", "'bob' of run r is not there; keys that can be removed: ana"),
        (remove_key, "run", "'run' of run r is the run's own and stays"),
    ],
)
def test_a_name_that_cannot_be_is_refused_and_changes_nothing(run: RunDir, change: Any, name: str, words: str) -> None:
    add_key(run, "ana")
    before = run.secrets_file.read_bytes()
    with pytest.raises(KeyNameError) as error:
        change(run, name)
    assert words in str(error.value)
    assert run.secrets_file.read_bytes() == before


def test_a_directory_that_is_no_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(RunDirError, match="is no run directory"):
        add_key(RunDir(tmp_path), "ana")
    assert not list(tmp_path.iterdir())


async def status(gateway: Gateway, key: str) -> int:
    return (await gateway.client.get("/v1/models", headers={"Authorization": f"Bearer {key}"})).status_code


async def test_a_running_gateway_takes_a_new_key_and_drops_a_removed_one(run: RunDir, tiny_llama_dir: Path) -> None:
    renderer = ChatRenderer.from_pretrained(tiny_llama_dir)
    gateway = assemble(renderer, ScriptedEngine(renderer, str.upper), run.config(), keys=KeyFile(run))
    own = run.secrets().api_key
    assert await status(gateway, own) == 200
    key = add_key(run, "ana")
    assert (await status(gateway, key), await status(gateway, own)) == (200, 200)
    remove_key(run, "ana")
    again = add_key(run, "ana")
    assert (await status(gateway, key), await status(gateway, again)) == (401, 200)
    remove_key(run, "ana")
    assert (await status(gateway, again), await status(gateway, own)) == (401, 200)


@pytest.mark.parametrize("damage", [lambda file: file.write_text("{"), lambda file: file.unlink()])
def test_a_file_that_cannot_be_read_leaves_the_keys_as_they_were_and_says_so_once(run: RunDir, damage: Any) -> None:
    keys = KeyFile(run)
    before = dict(keys())
    whole = run.secrets_file.read_text()
    damage(run.secrets_file)
    with capture_logs() as log:
        assert keys() == keys() == before
    assert [entry["event"] for entry in log] == ["keys_not_read"]
    run.secrets_file.write_text(whole)
    added = add_key(run, "ana")
    assert keys() == before | {"ana": added}
