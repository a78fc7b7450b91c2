"""env-check: rows that say what was found and what to do."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from openclaw_core.cluster.checks import Check, check_machine
from openclaw_core.config import RunConfig, load_config
from openclaw_core.rundir import RunDir, create_run
from openclaw_core.stages import StageError, env_check, env_verdict
from openclaw_core.weights.files import file_records
from openclaw_core.weights.sources import MARKER
from tests.ports import free_ports


@pytest.fixture
def config(tmp_path: Path, tiny_llama_dir: Path) -> RunConfig:
    """A run of a tiny model that is in place, on free ports."""
    overrides = {
        "model.name": "tiny",
        "paths.runs": str(tmp_path / "runs"),
        "paths.models": str(tmp_path / "models"),
        **free_ports(),
    }
    directory = tmp_path / "models" / "tiny" / "hf"
    directory.mkdir(parents=True)
    for file in tiny_llama_dir.iterdir():
        (directory / file.name).write_bytes(file.read_bytes())
    (directory / MARKER).write_text(json.dumps({"source": "x", "files": file_records(directory.iterdir())}))
    return load_config("local-cpu", overrides)


def run_of(config: RunConfig) -> RunDir:
    return create_run(config, "r")


def row(rows: list[Check], name: str) -> Check:
    return next(found for found in rows if found.check == name)


def test_a_fit_machine_passes(config: RunConfig):
    rows = check_machine(config, run_of(config))
    assert [str(found) for found in rows if not found.ok] == []
    assert {"python", "packages", "cores", "memory", "disk", "model", "model files", "chat template", "ports"} <= {
        r.check for r in rows
    }
    assert env_check(config, run_of(config))["status"] == "done"


@pytest.mark.parametrize("preset", ["4b-2nodes", "32b-8nodes"])
def test_a_run_on_hosts_of_its_own_asks_little_of_this_machine(preset: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    config = load_config(preset, {"paths.runs": str(tmp_path), "feeder.simulator": "scripted"})
    rows = check_machine(config, run_of(config))
    assert [str(found) for found in rows if not found.ok] == []
    assert [found.check for found in rows] == ["python", "packages", "people", "ssh"]
    monkeypatch.setenv("PATH", str(tmp_path))
    assert str(row(check_machine(config, run_of(config)), "ssh")) == "ssh: not installed; install the OpenSSH client"


def test_a_changed_model_file_is_found(config: RunConfig):
    weights = config.paths.models / "tiny" / "hf" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\0")
    found = row(check_machine(config, run_of(config)), "model files")
    assert (found.ok, found.value) == (False, "not as downloaded: model.safetensors")
    assert "download-model fetches it anew" in found.advice


def test_a_missing_model_is_wrong_for_a_run_and_to_be_expected_without_one(tmp_path: Path):
    config = load_config("local-cpu", {"paths.models": str(tmp_path), "paths.runs": str(tmp_path / "runs"), **free_ports()})
    assert not row(check_machine(config, run_of(config)), "model").ok
    assert row(check_machine(config), "model").ok


def test_a_context_beyond_the_model_is_refused(config: RunConfig):
    long = config.model_copy(update={"model": config.model.model_copy(update={"context_length": 4096})})
    found = row(check_machine(long, run_of(long)), "context length")
    assert str(found) == "context length: 4096 of 2048 positions; set model.context_length to 2048 at most"


def test_too_little_disk_is_said_with_the_sum(config: RunConfig):
    hoarder = config.model_copy(update={"train": config.train.model_copy(update={"keep_last": 10**9})})
    found = row(check_machine(hoarder, run_of(hoarder)), "disk")
    assert not found.ok
    assert "MB needed" in found.value
    assert "train.keep_last" in found.advice


def test_a_taken_port_is_a_row_of_its_own(config: RunConfig):
    with socket.create_server(("127.0.0.1", config.ports.control)):
        found = row(check_machine(config, run_of(config)), "ports.control")
    assert not found.ok
    assert str(config.ports.control) in found.value
    assert "ports.control=<port>" in found.advice


def test_every_wrong_row_is_in_the_message():
    rows = [Check("a", "1", True, "none"), Check("b", "2", False, "mend b"), Check("c", "3", False, "mend c")]
    with pytest.raises(StageError) as error:
        env_verdict(rows)
    assert str(error.value) == "b: 2; mend b\nc: 3; mend c"
