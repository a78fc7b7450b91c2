"""What a run would do on its hosts, as it is told before anything is done. Golden texts: UPDATE_GOLDEN=1 writes them anew."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from openclaw_core.cluster.copies.making import convert_spec, download_spec, with_token
from openclaw_core.cluster.dry_run import LAUNCH, Action, DryRun, as_json, dry_run
from openclaw_core.cluster.dry_run.masking import masked, masked_text
from openclaw_core.cluster.dry_run.stages import CODE_DIGEST, container_details
from openclaw_core.cluster.dry_run.text import as_text, print_dry_run
from openclaw_core.cluster.errors import ClusterError
from openclaw_core.cluster.host_checks.container import inside_spec
from openclaw_core.cluster.specs import ray_specs
from openclaw_core.config import load_config
from openclaw_core.planning import PlanError
from openclaw_core.planning.placement import place_ranks
from openclaw_core.rundir import create_run

GOLDEN = Path(__file__).parents[1] / "golden"
CLUSTERS = ("4b-1node", "4b-2nodes", "32b-8nodes")
STAGES = (
    *("begin", "build-image", "distribute-image", "download-model", "convert-checkpoint"),
    *("env-check", "launch-ray", "train-loop", "feeder", "teardown"),
)


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def made(preset: str, settings: dict[str, Any] | None = None) -> DryRun:
    return dry_run(load_config(preset, settings), "golden")


@pytest.mark.parametrize("preset", CLUSTERS)
def test_a_dry_run_is_this_text(preset: str) -> None:
    file, text = GOLDEN / f"dry_run_{preset}.txt", as_text(made(preset))
    if os.environ.get("UPDATE_GOLDEN"):
        file.write_text(text, encoding="utf-8")
    assert text == file.read_text(encoding="utf-8")


@pytest.mark.parametrize("preset", [*CLUSTERS, "local-cpu"])
def test_it_names_no_place_of_this_machine(preset: str, tmp_path: Path) -> None:
    text = as_text(made(preset))
    assert not [place for place in (str(tmp_path), str(Path.home()), str(GOLDEN.parents[1])) if place in text.split()]
    assert "/home/" not in text and "/tmp/" not in text


@pytest.mark.parametrize("preset", CLUSTERS)
def test_the_containers_are_those_that_a_launch_starts(preset: str) -> None:
    config = load_config(preset)
    specs = list(ray_specs(config, "golden", place_ranks(config), CODE_DIGEST))
    shown = [action for action in made(preset).actions if (action.stage, action.kind) == ("launch-ray", "container")]
    assert [(action.host, action.what) for action in shown] == [(spec.host, spec.name) for spec in specs]
    for action, spec in zip(shown, specs, strict=True):
        assert action.details["command"] == list(spec.command)
        assert action.details["environment"] == spec.environment
        assert action.details["devices"] == list(spec.devices)
        assert len(action.details["mounts"]) == len(spec.mounts)


def test_stages_come_in_the_order_of_the_flow_on_every_host() -> None:
    dry = made("32b-8nodes")
    assert list(dict.fromkeys(action.stage for action in dry.actions)) == list(STAGES)
    for host in dry.hosts:
        stages = [action.stage for action in dry.on(host.name)]
        assert stages and stages == sorted(stages, key=STAGES.index)


def test_every_host_is_told_how_it_is_reached_and_which_npus_do_what() -> None:
    (host,) = made("4b-1node", {"cluster.ssh.key": "/keys/id"}).hosts
    assert host.ssh == "ssh -i /keys/id -p 22 root@node"
    assert host.npus == {"trainer": "0-3", "scorer": "6", "engine": "4-5", "judge": "7"}


def test_the_model_goes_to_all_hosts_and_the_start_weights_to_trainers_and_scorer() -> None:
    dry = made("32b-8nodes")

    def hosts(stage: str, kind: str) -> list[str]:
        return [action.host for action in dry.actions if (action.stage, action.kind) == (stage, kind)]

    assert hosts("download-model", "copy") == [host.name for host in dry.hosts]
    assert hosts("convert-checkpoint", "copy") == ["master", "actor-1", "actor-2", "actor-3", "teacher"]
    assert hosts("download-model", "container") == hosts("convert-checkpoint", "container") == ["master"]


def of_stage(dry: DryRun, stage: str, kind: str) -> list[Action]:
    return [action for action in dry.actions if (action.stage, action.kind) == (stage, kind)]


def test_the_containers_of_single_stages_are_those_that_the_stages_run() -> None:
    config, dry = load_config("4b-2nodes"), made("4b-2nodes")
    code, (train, prm) = CODE_DIGEST, config.cluster.hosts
    specs = {
        "download-model": [with_token(download_spec(config, "golden", code), "golden")],
        "convert-checkpoint": [convert_spec(config, "golden", code)],
        "env-check": [inside_spec(config, "golden", host, code, "<host_checks/inside.py>") for host in (train, prm)],
    }
    for stage, wanted in specs.items():
        shown = [action.details for action in of_stage(dry, stage, "container")]
        assert shown == [container_details(spec) for spec in wanted], stage


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_start_weights_are_told_where_the_stage_puts_them(dtype: str) -> None:
    there = [action.what for action in of_stage(made("4b-2nodes", {"model.dtype": dtype}), "convert-checkpoint", "copy")]
    assert there == [f"/data/openclaw/models/Qwen3-4B-Thinking-2507/torch_dist-{dtype}/"]
    here = [action.what for action in of_stage(made("local-cpu", {"model.dtype": dtype}), "convert-checkpoint", "copy")]
    assert here == [f"models/SmolLM2-135M-Instruct/torch_dist-{dtype}/"]


def test_a_model_of_a_package_is_fetched_on_the_launch_machine_and_no_container_does_it() -> None:
    dry = made("2nodes-sim")
    assert of_stage(dry, "download-model", "container") == of_stage(dry, "download-model", "file") == []
    copies = {action.host: action.details["from"] for action in of_stage(dry, "download-model", "copy")}
    source = load_config("2nodes-sim").model.source
    assert copies == {LAUNCH: source, "node-a": "the launch machine", "node-b": "node-a, by the launch machine"}


def test_a_directory_of_the_head_is_linked_to_and_needs_no_key() -> None:
    dry = made("4b-2nodes", {"model.source": "file:///openclaw/mine"})
    (container,) = of_stage(dry, "download-model", "container")
    assert "HF_TOKEN_PATH" not in container.details["environment"] and of_stage(dry, "download-model", "file") == []
    copies = {action.host: action.details["from"] for action in of_stage(dry, "download-model", "copy")}
    assert copies == {"train": "a link to /data/openclaw/mine", "prm": "train, by the launch machine"}
    with pytest.raises(ClusterError, match=r"file:///data/mine is not in the containers of host train"):
        made("4b-2nodes", {"model.source": "file:///data/mine"})


def test_keys_of_the_run_go_to_the_head_alone() -> None:
    files = [(action.host, action.what.rpartition("/")[2]) for action in made("4b-2nodes").actions if action.kind == "file"]
    assert [host for host, name in files if name == "secrets.json"] == [LAUNCH, "train"]
    assert [host for host, name in files if name == "ray-token"] == ["train", "prm"]


def test_an_image_that_is_not_built_must_be_there() -> None:
    actions = [action for action in made("4b-2nodes", {"cluster.build": None}).actions if action.stage == "build-image"]
    assert [action.what for action in actions] == ["no image is built: openclaw-ascend:latest must be on a host already"]
    builds = made("4b-2nodes", {"cluster.build": {"host": "prm", "args": {"GITHUB_PREFIX": "https://m/"}}})
    (build,) = [action for action in builds.actions if action.stage == "build-image"]
    assert (build.host, build.details["arguments"]) == ("prm", {"GITHUB_PREFIX": "https://m/"})
    sent = [action.host for action in builds.actions if action.kind == "copy" and action.what.startswith("image")]
    assert sent == ["train"]


def test_hosts_can_be_chosen() -> None:
    some = made("4b-2nodes").only(["prm"])
    assert [host.name for host in some.hosts] == ["prm"] and {action.host for action in some.actions} == {"prm"}
    assert "\nprm: prm\n" in as_text(some) and "\ntrain:" not in as_text(some)
    with pytest.raises(KeyError, match="other"):
        made("4b-2nodes").only(["prm", "other"])


def test_ranks_without_a_place_are_refused() -> None:
    with pytest.raises(PlanError, match="trainer: 5 x 2 = 10 NPUs do not fit"):
        made("4b-2nodes", {"train.data_parallel": 5})


def test_no_secret_of_a_run_is_in_it(tmp_path: Path) -> None:
    settings = {
        "paths.runs": str(tmp_path),
        "cluster.environment": {
            "HF_TOKEN": "hidden-1",
            "MY_PASSWORD": "hidden-2",
            "PLAIN": "https://me:hidden-3@hub",
            "OTHER": "x sk-hidden-4",
        },
        "cluster.build": {"args": {"PIP_INDEX_URL": "https://me:hidden-5@mirror/simple", "API_KEY": "hidden-6"}},
    }
    config = load_config("4b-2nodes", settings)
    run = create_run(config, "r", {"simulator": "sk-hidden-8", "judge": "hidden-9"}, {"SGLANG_API_KEY": "hidden-10"})
    keys = asdict(run.secrets())
    own = [keys["api_key"], keys["control_token"], keys["ray_token"]]
    dry = dry_run(run.config(), run.run_id)
    for text in (as_text(dry), json.dumps(as_json(dry))):
        assert "hidden" not in text
        assert not [key for key in own if key in text]
        assert "HF_TOKEN" in text and "RAY_AUTH_TOKEN_PATH" in text and "/openclaw/runs/r/ray-token" in text


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("RAY_AUTH_TOKEN_PATH", "/openclaw/runs/r/ray-token", "/openclaw/runs/r/ray-token"),
        ("HF_TOKEN", "abc", "****"),
        ("http_proxy", "me:pw@proxy:1", "****@proxy:1"),
        ("HTTPS_PROXY", "http://me@proxy:1", "http://****@proxy:1"),
        ("no_proxy", "a,b", "a,b"),
        ("WHATEVER", "sk-1234567890", "****"),
        ("EMPTY_KEY", "", ""),
    ],
)
def test_a_value_is_masked_by_its_name_and_by_its_looks(name: str, value: str, shown: str) -> None:
    assert masked({name: value}) == {name: shown}


def test_addresses_are_left_as_they_are() -> None:
    assert masked_text("root@10.0.0.1 http://10.0.0.1:30000/v1") == "root@10.0.0.1 http://10.0.0.1:30000/v1"


def test_the_terminal_gets_whole_lines(capsys: pytest.CaptureFixture[str]) -> None:
    dry = made("4b-2nodes")
    print_dry_run(dry)
    assert capsys.readouterr().out == as_text(dry)


def test_a_run_on_this_machine_is_told_too() -> None:
    dry = made("local-cpu")
    assert dry.hosts == () and {action.host for action in dry.actions} == {LAUNCH}
    assert {"30000", "6379"} <= {action.what for action in dry.actions if action.kind == "port"}
