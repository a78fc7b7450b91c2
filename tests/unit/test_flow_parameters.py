"""Flow parameters → configuration → run directory."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, SecretStr

from blocks import ClusterBlock, ImageBlock, ModelBlock, SimulatorBlock
from blocks.cluster import Host, HostMount, Ssh
from blocks.image import Build
from flows.parameters import default_run_id, locate_run, open_run, resolve_config
from openclaw_core.config import ConfigError, load_config
from openclaw_core.config.cluster import HostConfig, SshConfig
from openclaw_core.config.env import external_keys
from openclaw_core.rundir import RunDirError, create_run, find_run, read_key

FLOW_RUN = "12345678-9abc-4def-8123-456789abcdef"


def test_steps_and_overrides_are_laid_over_the_preset():
    config = resolve_config("local-cpu", steps=3, overrides={"rollout.batch_size": 8, "train.steps": 50})
    assert (config.train.steps, config.rollout.batch_size) == (3, 8)
    assert config.optimizer == load_config("local-cpu").optimizer


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"preset": "local-gpu"}, "no preset 'local-gpu'; there are: 2nodes-sim, 32b-8nodes, 4b-1node, 4b-2nodes, local-cpu"),
        ({"preset": "local-cpu", "overrides": {"rollout.batch_sizes": 8}}, "no parameter 'rollout.batch_sizes'; did you mean"),
        ({"preset": "local-cpu", "overrides": {"rollout.batch_size": 0}}, "rollout.batch_size"),
    ],
)
def test_bad_values_are_named(parameters: dict[str, Any], message: str):
    with pytest.raises(ConfigError, match=message.replace(".", r"\.")):
        resolve_config(**parameters)


def test_a_cluster_block_replaces_the_hosts():
    block = ClusterBlock(hosts=[Host(name="n1", roles=["train", "rollout"], npus=8)], image=ImageBlock(image="mine", tag="7"))
    cluster = load_config("local-cpu", block.overrides()).cluster
    assert [(host.name, host.roles, host.npus) for host in cluster.hosts] == [("n1", ("train", "rollout"), 8)]
    assert (cluster.containers, cluster.image) == (True, "mine:7")


def test_a_fresh_cluster_block_is_this_machine():
    assert load_config("local-cpu", ClusterBlock().overrides()).cluster == load_config("local-cpu").cluster


def test_what_a_cluster_block_leaves_out_is_as_the_preset_says():
    """A document of the first version: hosts and image alone."""
    said = {
        "hosts": [{"name": "n1", "roles": ["train", "rollout", "teacher", "prm"], "npus": 8}],
        "image": {"image": "mine", "tag": "7"},
    }
    preset, cluster = (load_config("4b-2nodes", of).cluster for of in ({}, ClusterBlock.model_validate(said).overrides()))
    assert (cluster.start_deadline_s, cluster.ray_object_store_mb) == (preset.start_deadline_s, preset.ray_object_store_mb)
    assert (cluster.image, cluster.build, cluster.hosts[0].port) == ("mine:7", None, 22)


def test_a_cluster_block_can_say_all_that_the_configuration_of_a_host_can():
    assert set(Host.model_fields) == set(HostConfig.model_fields)
    assert set(Ssh.model_fields) == set(SshConfig.model_fields)
    block, config = Host(name="n", roles=["train"]), HostConfig(name="n", roles=("train",))
    assert block.model_dump() == config.model_dump(mode="json")


@pytest.mark.parametrize("model", [ClusterBlock, Host, Ssh, HostMount, ImageBlock, Build, ModelBlock, SimulatorBlock])
def test_every_field_of_a_block_is_named_and_explained(model: type[BaseModel]):
    shown = {name: field for name, field in model.model_fields.items() if not name.startswith("_")}
    assert not [name for name, field in shown.items() if not (field.title and field.description)]


@pytest.mark.parametrize(
    ("host", "message"),
    [
        ({"name": "N1"}, "cluster.hosts.0.name: String should match pattern"),
        ({"npus": 17}, "cluster.hosts.0.npus: Input should be less than or equal to 16"),
        ({"work_root": "here"}, "here must be an absolute path"),
        ({"roles": ["train"]}, "no host of cluster.hosts has the role rollout; give it to one"),
    ],
)
def test_what_a_cluster_block_may_not_say_is_told_as_by_the_configuration(host: dict[str, Any], message: str):
    block = ClusterBlock(
        hosts=[Host(**{"name": "n1", "roles": ["train", "rollout"], **host})], image=ImageBlock(image="i", tag="1")
    )
    with pytest.raises(ConfigError, match=message.replace(".", r"\.")):
        load_config("4b-2nodes", block.overrides())


@pytest.mark.parametrize("reference", ["mine:7", "host:5000/a/mine:7", "host:5000/mine@sha256:12ab", "mine@sha256:12ab"])
def test_an_image_block_has_the_name_of_its_image(reference: str):
    assert ImageBlock.of(reference, None).reference == reference


def test_an_image_without_a_tag_is_the_latest():
    assert ImageBlock.of("host:5000/mine", {"dockerfile": "D"}).reference == "host:5000/mine:latest"


def test_a_model_block_replaces_the_model():
    block = ModelBlock(model_name="m", source="file:///models/m", context_length=2048)
    model = load_config("local-cpu", block.overrides()).model
    assert (model.name, model.source, model.context_length) == ("m", "file:///models/m", 2048)


def test_every_attempt_of_a_flow_run_uses_one_run_directory(tmp_path: Path):
    parameters = {"preset": "local-cpu", "steps": 2, "run_id": None, "overrides": {"paths.runs": str(tmp_path)}}
    first = open_run(parameters, FLOW_RUN)
    assert first.path == tmp_path / "local-cpu-12345678"
    assert open_run(parameters, FLOW_RUN) == first == locate_run(parameters, FLOW_RUN)
    assert default_run_id("local-cpu", FLOW_RUN) == first.run_id


def test_keys_are_made_once_and_are_private(tmp_path: Path):
    run = create_run(load_config("local-cpu", {"paths.runs": str(tmp_path)}), "r")
    keys = run.secrets()
    assert run.secrets_file.stat().st_mode & 0o777 == 0o600
    assert len({keys.api_key, keys.control_token, keys.ray_token}) == 3
    assert create_run(load_config("local-cpu", {"paths.runs": str(tmp_path)}), "r").secrets() == keys


def test_paths_are_stored_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    config = create_run(load_config("local-cpu"), "r").config()
    assert (config.paths.runs, config.paths.models) == (tmp_path / "runs", tmp_path / "models")


def test_a_run_id_with_another_configuration_is_refused(tmp_path: Path):
    create_run(load_config("local-cpu", {"paths.runs": str(tmp_path)}), "r")
    with pytest.raises(RunDirError, match="run 'r' exists with another configuration: optimizer is"):
        create_run(load_config("local-cpu", {"paths.runs": str(tmp_path), "optimizer.lr": 1e-3}), "r")


@pytest.mark.parametrize("run_id", ["", "../up", "a/b", ".hidden", "x" * 65, "a b"])
def test_a_run_id_is_a_plain_name(tmp_path: Path, run_id: str):
    with pytest.raises(RunDirError, match="allowed are 1 to 64 letters"):
        create_run(load_config("local-cpu", {"paths.runs": str(tmp_path)}), run_id)
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_run_is_named_with_those_that_exist(tmp_path: Path):
    create_run(load_config("local-cpu", {"paths.runs": str(tmp_path)}), "known")
    with pytest.raises(RunDirError, match=r"no run 'unknown' .* there are: known"):
        find_run(tmp_path, "unknown")


def test_a_simulator_block_lets_its_model_play_the_people_and_keeps_its_key_apart():
    block = SimulatorBlock(base_url="http://127.0.0.1:9/v1", model_name="big", api_key=SecretStr("sk-external"))
    feeder = load_config("local-cpu", block.overrides()).feeder
    assert (feeder.simulator, feeder.simulator_url, feeder.simulator_model) == ("openai", "http://127.0.0.1:9/v1", "big")
    assert "sk-external" not in str(block.overrides())
    assert block.external_keys() == {"simulator": "sk-external"}
    assert SimulatorBlock().external_keys() == {}


def test_a_fresh_simulator_block_is_the_default_of_the_configuration():
    fresh, cluster = load_config("local-cpu", SimulatorBlock().overrides()).feeder, load_config("4b-2nodes").feeder
    assert (fresh.simulator_url, fresh.simulator_model) == (cluster.simulator_url, cluster.simulator_model)


@pytest.mark.parametrize("preset", ["4b-1node", "4b-2nodes", "32b-8nodes"])
def test_clusters_are_fed_by_played_people_with_the_real_assistant(preset: str):
    feeder = load_config(preset).feeder
    assert (feeder.persona_set, feeder.simulator, feeder.driver) == ("homework", "openai", "openclaw_cli")
    assert (feeder.problems, feeder.sessions_in_flight) == ("gsm8k", 4)


def test_keys_of_others_come_from_the_environment_by_what_they_are_for(monkeypatch: pytest.MonkeyPatch):
    for name in ("OPENCLAW_JUDGE_API_KEY", "OPENCLAW_SIMULATOR_API_KEY", "ARK_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    assert external_keys() == {}
    monkeypatch.setenv("ARK_API_KEY", "ark")
    assert external_keys() == {"simulator": "ark"}
    monkeypatch.setenv("OPENCLAW_SIMULATOR_API_KEY", "own")
    monkeypatch.setenv("OPENCLAW_JUDGE_API_KEY", "judge")
    assert external_keys() == {"simulator": "own", "judge": "judge"}
    monkeypatch.setenv("OPENCLAW_SIMULATOR_API_KEY", "")
    assert external_keys()["simulator"] == "ark"


def test_an_existing_run_takes_new_keys_of_others_and_keeps_its_own(tmp_path: Path):
    config = load_config("local-cpu", {"paths.runs": str(tmp_path)})
    first = create_run(config, "r", {"simulator": "old", "judge": "judge"}).secrets()
    again = create_run(config, "r", {"simulator": "new"})
    assert again.secrets() == replace(first, external_keys={"simulator": "new", "judge": "judge"})
    assert again.secrets_file.stat().st_mode & 0o777 == 0o600
    assert create_run(config, "r").secrets() == again.secrets()
    assert "external_keys" not in again.config_file.read_text()


def test_a_persona_directory_is_stored_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    config = create_run(load_config("local-cpu", {"feeder.persona_set": "./mine"}), "r").config()
    assert config.feeder.persona_set == str(tmp_path / "mine")


@pytest.mark.parametrize(
    ("content", "message"), [("", "must hold one key"), ("a b", "must hold one key"), (None, "cannot be read")]
)
def test_a_key_file_holds_one_key(tmp_path: Path, content: str | None, message: str):
    file = tmp_path / "key"
    if content is not None:
        file.write_text(content)
    with pytest.raises(RunDirError, match=message):
        read_key(file)
