"""The environment names of the earlier scripts: what they set, what is refused, who sees it. docs/MIGRATION.md agrees."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from flows import launcher
from flows.parameters import open_run, resolve_config
from openclaw_core.cli import app
from openclaw_core.config import ConfigError, RunConfig, load_config
from openclaw_core.config.env import EXTERNAL_KEYS, cluster_hints, load_asked
from openclaw_core.config.known_names import OPENCLAW_CLI, OWN
from openclaw_core.config.legacy import HINTS, KEYS, PARAMETERS, RETIRED, ClusterHints, read_legacy
from openclaw_core.config.load import parameter_names
from openclaw_core.engines.local import LocalEngine
from openclaw_core.feeder.client import GatewayClient
from openclaw_core.gateway.rendering import ChatRenderer
from openclaw_core.rundir import create_run
from tests.gateway_parts import assemble, tiny_config, user
from tests.ports import free_ports

ROOT = Path(__file__).parents[2]
MIGRATION = (ROOT / "docs/MIGRATION.md").read_text()
EARLIER = {*PARAMETERS, *HINTS, *KEYS, *RETIRED}

SETTINGS: list[tuple[str, str, dict[str, Any]]] = [
    ("OPENCLAW_TOPK_K", "8", {"loss.topk": 8}),
    ("OPENCLAW_TOPK_MAX_CAND", "2", {"loss.max_candidates": 2}),
    ("OPENCLAW_TOPK_ADV_DIFF_CLIP", "0", {"loss.adv_diff_clip": 0.0}),
    ("OPENCLAW_TOPK_ADV_DIFF_CLIP", "-1", {"loss.adv_diff_clip": -1.0}),
    ("OPENCLAW_TOPK_W_RL", "0", {"loss.w_rl": 0.0}),
    ("OPENCLAW_TOPK_W_OPD", "0.5", {"loss.w_opd": 0.5}),
    ("OPENCLAW_TOPK_HINT_SELECTION", "token_optimal", {"loss.hint_selection": "token_optimal"}),
    ("OPENCLAW_TOPK_SUBSET_MODE", "overlap", {"loss.subset_mode": "overlap"}),
    ("OPENCLAW_TOPK_PPO_CLIP_EPS_LO", "0.1", {"loss.eps_lo": 0.1}),
    ("OPENCLAW_TOPK_PPO_CLIP_EPS_HI", "0.3", {"loss.eps_hi": 0.3}),
    ("KL_LOSS_COEF", "0.0", {"loss.kl_coef": 0.0}),
    ("PRM_M", "5", {"judge.votes": 5}),
    ("PRM_TEMPERATURE", "0.9", {"judge.temperature": 0.9}),
    ("PRM_MAX_NEW_TOKENS", "2048", {"judge.max_tokens": 2048}),
    ("ROLLOUT_BATCH_SIZE", " 32 ", {"rollout.batch_size": 32}),
    ("NUM_ROLLOUT", "100000000", {"train.steps": 100_000_000}),
    ("ROLLOUT_TEMPERATURE", "1", {"rollout.temperature": 1.0}),
    ("OPENCLAW_ROLLOUT_REP_PENALTY", "1.1", {"rollout.repetition_penalty": 1.1}),
    ("CONTEXT_LENGTH", "2048", {"model.context_length": 2048}),
    ("ROLLOUT_MAX_CONTEXT_LEN", "2048", {"model.context_length": 2048}),
    ("HF_CKPT", "/models/Qwen3-4B", {"model.source": "file:///models/Qwen3-4B", "model.name": "Qwen3-4B"}),
    ("HF_CKPT", "file:///models/Qwen3-4B/", {"model.source": "file:///models/Qwen3-4B/", "model.name": "Qwen3-4B"}),
    ("HF_CKPT", "Qwen/Qwen3-4B", {"model.source": "hf://Qwen/Qwen3-4B", "model.name": "Qwen3-4B"}),
    ("HF_CKPT", "hf://Qwen/Qwen3-4B@main", {"model.source": "hf://Qwen/Qwen3-4B@main", "model.name": "Qwen3-4B"}),
    ("SERVED_MODEL_NAME", "qwen3-4b", {"model.served_name": "qwen3-4b"}),
    ("SAVE_CKPT", "/ckpt", {"paths.runs": "/ckpt"}),
]

REFUSED: list[tuple[dict[str, str], str]] = [
    ({"PRM_M": "99"}, "PRM_M=99: judge.votes: Input should be less than or equal to 15"),
    ({"PRM_M": "three"}, "PRM_M=three: judge.votes: Input should be a valid integer"),
    ({"OPENCLAW_TOPK_K": "0"}, "OPENCLAW_TOPK_K=0: loss.topk: Input should be greater than or equal to 1"),
    ({"OPENCLAW_TOPK_ADV_DIFF_CLIP": "nan"}, "OPENCLAW_TOPK_ADV_DIFF_CLIP=nan: loss.adv_diff_clip: it must be a finite number"),
    ({"KL_LOSS_COEF": "inf"}, "KL_LOSS_COEF=inf: loss.kl_coef: it must be a finite number"),
    ({"KL_LOSS_COEF": "-0.1"}, "KL_LOSS_COEF=-0.1: loss.kl_coef: Input should be greater than or equal to 0"),
    ({"ROLLOUT_TEMPERATURE": "0"}, "ROLLOUT_TEMPERATURE=0: rollout.temperature: Input should be greater than 0"),
    (
        {"OPENCLAW_TOPK_SUBSET_MODE": "both"},
        "OPENCLAW_TOPK_SUBSET_MODE=both: loss.subset_mode: Input should be 'student', 'teacher' or 'overlap'",
    ),
    ({"HF_CKPT": "no/such/place"}, "HF_CKPT=no/such/place: it must be a directory in Hugging Face form, or <org>/<name>"),
    ({"TRAIN_EPOCHS": "2"}, "TRAIN_EPOCHS=2: every sample is trained once; train.steps_per_rollout=k makes k"),
    ({"OPENCLAW_EVAL_MODE": "0"}, "loss.w_rl=0; allowed is 1"),
    ({"OPENCLAW_COMBINE_OPD_TEACHER_SOURCE": "sglang"}, "allowed is mcore or megatron"),
    ({"OPENCLAW_RECORD_FILE": "r.jsonl"}, "`openclaw-rl turns export RUN --out FILE` writes one; unset it"),
    ({"MASTER_ADDR": "root@10.0.0.1"}, "MASTER_ADDR=root@10.0.0.1: it must be a host's name or address"),
    ({"PRM_NODE": "http://10.0.0.2"}, "PRM_NODE=http://10.0.0.2: it must be a host's name or address"),
    ({"MASTER_ADDR": "10.0.0.1:6379"}, "MASTER_ADDR=10.0.0.1:6379: it must be a host's name or address, without user, port"),
    ({"MASTER_ADDR": "node_1"}, "MASTER_ADDR=node_1: it must be a host's name or address"),
    ({"WORK_ROOT": "work"}, "WORK_ROOT=work: it must be an absolute path"),
    ({"PRM_GPUS": "17"}, "PRM_GPUS=17: it must be a whole number from 1 to 16"),
    ({"SGLANG_API_KEY": "two words"}, "SGLANG_API_KEY: a key has no blanks"),
    (
        {"CONTEXT_LENGTH": "2048", "ROLLOUT_MAX_CONTEXT_LEN": "1024"},
        "CONTEXT_LENGTH=2048 and ROLLOUT_MAX_CONTEXT_LEN=1024 both set model.context_length; give one of them, or one value",
    ),
    (
        {"OPENCLAW_TOPK_MAX_CANDS": "2"},
        "OPENCLAW_TOPK_MAX_CANDS: there is no such name; did you mean OPENCLAW_TOPK_MAX_CAND? Else unset it",
    ),
    ({"OPENCLAW_JUDGE_KEY": "x"}, "OPENCLAW_JUDGE_KEY: there is no such name; did you mean OPENCLAW_JUDGE_API_KEY?"),
    ({"OPENCLAW_STATEDIR": "x"}, "OPENCLAW_STATEDIR: there is no such name; did you mean OPENCLAW_STATE_DIR?"),
    ({"OPENCLAW_ZZZZZZZZZZZZ": "x"}, "unset it; docs/MIGRATION.md has those that there are"),
]

Ask = Callable[..., None]


@pytest.fixture(autouse=True)
def say(monkeypatch: pytest.MonkeyPatch) -> Ask:
    """Sets variables in an environment that says nothing else."""
    for name in [*os.environ]:
        if name.upper() in EARLIER or name.startswith("OPENCLAW_"):
            monkeypatch.delenv(name)

    def variables(**values: str) -> None:
        for name, value in values.items():
            monkeypatch.setenv(name, value)

    return variables


def at(config: RunConfig, dotted: str) -> Any:
    node: Any = config
    for part in dotted.split("."):
        node = getattr(node, part)
    return node


@pytest.mark.parametrize(("name", "text", "parameters"), SETTINGS)
def test_a_name_sets_its_parameters(name: str, text: str, parameters: dict[str, Any]) -> None:
    found = read_legacy({name: text}).overrides
    assert found == parameters
    assert {dotted: type(value) for dotted, value in found.items()} == {d: type(value) for d, value in parameters.items()}
    config = load_config("local-cpu", found)
    assert all(str(at(config, dotted)) == str(value) for dotted, value in parameters.items())


def test_every_parameter_name_was_tried() -> None:
    assert {name for name, _, _ in SETTINGS} == set(PARAMETERS)


@pytest.mark.parametrize(("environment", "message"), REFUSED)
def test_what_cannot_be_meant_is_refused_with_what_is_allowed(environment: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        read_legacy(environment)


def test_everything_that_is_wrong_is_said_at_once() -> None:
    with pytest.raises(ConfigError) as error:
        read_legacy({"PRM_M": "0", "TRAIN_EPOCHS": "3", "OPENCLAW_TOPK": "4", "CONTEXT_LENGTH": "1"})
    assert sorted(line.split("=")[0].split(":")[0] for line in str(error.value).splitlines()) == [
        "CONTEXT_LENGTH",
        "OPENCLAW_TOPK",
        "PRM_M",
        "TRAIN_EPOCHS",
    ]


@pytest.mark.parametrize("name", sorted(EARLIER))
def test_an_empty_variable_is_none(name: str) -> None:
    assert read_legacy({name: "", "PATH": "/bin"}) == read_legacy({}) == read_legacy({name: "  "})


def test_two_names_may_say_the_same() -> None:
    assert read_legacy({"CONTEXT_LENGTH": "512", "ROLLOUT_MAX_CONTEXT_LEN": "512"}).overrides == {"model.context_length": 512}


def test_directories_are_those_of_the_shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "org/name").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    found = read_legacy({"HF_CKPT": "org/name", "SAVE_CKPT": "ckpt"}).overrides
    assert found == {
        "model.source": f"file://{(tmp_path / 'org/name').resolve()}",
        "model.name": "name",
        "paths.runs": str(tmp_path / "ckpt"),
    }


def test_what_is_said_of_hosts_is_kept_for_the_cluster(say: Ask) -> None:
    assert cluster_hints() == ClusterHints()
    say(MASTER_ADDR="10.0.0.1", PRM_NODE="prm.example", WORK_ROOT="/data/work", PRM_GPUS="8")
    say(HTTP_PROXY="http://me:secret@proxy:3128", https_proxy="http://small:3128", NO_PROXY="localhost,10.0.0.1")
    assert cluster_hints() == ClusterHints(
        "10.0.0.1",
        "prm.example",
        Path("/data/work"),
        8,
        "http://me:secret@proxy:3128",
        "http://small:3128",
        "localhost,10.0.0.1",
    )


def test_every_field_of_the_hints_has_its_variable() -> None:
    assert sorted(HINTS.values()) == sorted(field.name for field in fields(ClusterHints))


@pytest.mark.parametrize("name", ["OPENCLAW_STATE_DIR", "OPENCLAW_NO_RESPAWN", "OPENCLAW_HOME", "OPENCLAW_SGLANG_URL"])
def test_names_of_the_cli_and_our_own_are_left_alone(name: str) -> None:
    assert read_legacy({name: "x"}) == read_legacy({})


def test_every_name_that_the_project_uses_is_known() -> None:
    files = [ROOT / "Makefile", ROOT / "README.md", *ROOT.glob("*.yaml"), *ROOT.glob("docs/*.md"), *ROOT.glob(".ci/*")]
    for folder in ("openclaw_core", "flows", "tasks", "blocks", "tests", "benchmarks"):
        files += [file for file in (ROOT / folder).rglob("*.py") if file != Path(__file__)]
    named = {
        name
        for file in files
        for name in re.findall(r"""(?:["'`]|\$\{?|export )(OPENCLAW_[A-Z][A-Z0-9_]*[A-Z0-9])""", file.read_text())
    }
    assert named - EARLIER - OWN - OPENCLAW_CLI == set()
    others = {"HF_TOKEN"}  # the hub's own name for it
    assert {name for names in EXTERNAL_KEYS.values() for name in names} <= OWN | set(KEYS) | others


def test_the_preset_counts_least_then_the_environment_then_the_command_line(say: Ask) -> None:
    say(PRM_M="5", OPENCLAW_TOPK_K="8", MASTER_ADDR="10.0.0.1", TRAIN_EPOCHS="1", SGLANG_API_KEY="sk-mine")
    asked = load_asked("local-cpu", {"loss.topk": 2, "train.steps": 3})
    assert (asked.config.judge.votes, asked.config.loss.topk, asked.config.train.steps) == (5, 2, 3)
    assert asked.config == load_config("local-cpu", asked.overrides)
    assert asked.overrides == {"judge.votes": 5, "loss.topk": 2, "train.steps": 3}
    assert sorted(asked.told) == [
        "MASTER_ADDR=10.0.0.1 → without effect, for preset local-cpu runs on this machine",
        "OPENCLAW_TOPK_K=8 → no effect, for loss.topk=2 of the command line counts",
        "PRM_M=5 → judge.votes=5",
        "SGLANG_API_KEY: one more key that the gateway takes",
        f"TRAIN_EPOCHS=1: {RETIRED['TRAIN_EPOCHS'].instead}",
    ]


def test_what_is_said_of_hosts_is_laid_over_those_of_the_preset(say: Ask) -> None:
    say(MASTER_ADDR="10.0.0.1", PRM_NODE="10.0.0.2", WORK_ROOT="/data/work", PRM_GPUS="4")
    say(http_proxy="http://proxy:3128", NO_PROXY="mirror")
    asked = load_asked("4b-2nodes", {"train.steps": 3})
    train, prm = asked.config.cluster.hosts
    assert (train.address, train.npus, str(train.work_root)) == ("10.0.0.1", 8, "/data/work")
    assert (prm.address, prm.npus, str(prm.work_root)) == ("10.0.0.2", 4, "/data/work")
    assert (train.roles, prm.roles) == (("train", "rollout", "teacher"), ("prm",))
    assert asked.config.judge.base_urls == ("http://10.0.0.2:30000",)
    assert (asked.config.cluster.http_proxy, asked.config.cluster.no_proxy) == ("http://proxy:3128", "mirror")
    assert asked.config == load_config("4b-2nodes", json.loads(json.dumps(asked.overrides)))
    assert sorted(asked.told) == [
        "HTTP_PROXY=http://proxy:3128 → cluster.http_proxy",
        "MASTER_ADDR=10.0.0.1 → address of host train",
        "NO_PROXY=mirror → cluster.no_proxy",
        "PRM_GPUS=4 → NPUs of host prm",
        "PRM_NODE=10.0.0.2 → address of host prm, judge.base_urls=http://10.0.0.2:30000",
        "WORK_ROOT=/data/work → work_root of every host",
    ]


def test_of_eight_nodes_the_names_give_two_addresses(say: Ask) -> None:
    say(MASTER_ADDR="10.0.0.1", PRM_NODE="10.0.0.7", WORK_ROOT="/w")
    hosts = load_asked("32b-8nodes", {}).config.cluster.hosts
    assert {host.name: host.address for host in hosts if host.address} == {"master": "10.0.0.1", "prm": "10.0.0.7"}
    assert {str(host.work_root) for host in hosts} == {"/w"}


def test_hosts_of_the_command_line_come_before_those_of_the_environment(say: Ask) -> None:
    say(MASTER_ADDR="10.0.0.1", PRM_NODE="10.0.0.2", HTTP_PROXY="http://proxy:1")
    hosts = [{"name": "n", "roles": ["train", "rollout", "teacher", "prm"], "npus": 8, "address": "10.9.9.9"}]
    asked = load_asked("4b-2nodes", {"cluster.hosts": hosts, "cluster.http_proxy": None})
    assert [host.address for host in asked.config.cluster.hosts] == ["10.9.9.9"]
    assert asked.config.cluster.http_proxy is None
    assert asked.config.judge.base_urls == ("http://10.9.9.9:30000",)
    assert sorted(asked.told) == [
        "HTTP_PROXY=http://proxy:1 → no effect, for cluster.http_proxy of the command line counts",
        "MASTER_ADDR=10.0.0.1 → no effect, for cluster.hosts of the command line counts",
        "PRM_NODE=10.0.0.2 → no effect, for cluster.hosts of the command line counts",
    ]


def test_on_this_machine_the_names_of_hosts_are_without_effect_and_proxies_are_not_told(say: Ask) -> None:
    say(WORK_ROOT="/w", PRM_NODE="10.0.0.2", HTTPS_PROXY="http://me:secret@proxy:3128")
    asked = load_asked("local-cpu", {})
    assert asked.config == load_config("local-cpu")
    assert sorted(asked.told) == [
        f"{name} → without effect, for preset local-cpu runs on this machine" for name in ("PRM_NODE=10.0.0.2", "WORK_ROOT=/w")
    ]


@pytest.mark.parametrize("proxy", ["http://me:secret@proxy:3128", "me:se@cret@proxy:3128", "http://secret@proxy:3128"])
def test_a_proxy_with_a_password_is_refused_where_it_would_be_shown(say: Ask, proxy: str) -> None:
    say(HTTPS_PROXY=proxy)
    with pytest.raises(ConfigError, match="HTTPS_PROXY holds a user or a password") as error:
        load_asked("4b-2nodes", {})
    assert "secret" not in str(error.value) and "cret@" not in str(error.value)
    asked = load_asked("4b-2nodes", {"cluster.https_proxy": "http://open:3128"})
    assert asked.config.cluster.https_proxy == "http://open:3128"
    assert "cret@" not in str(asked.told) and "no effect" in asked.told[0]


@pytest.mark.parametrize(
    ("environment", "preset", "message"),
    [
        (
            {"MASTER_ADDR": "10.0.0.1", "PRM_NODE": "10.0.0.1"},
            "4b-2nodes",
            "two hosts of cluster.hosts are reached at 10.0.0.1:22",
        ),
        ({"MASTER_ADDR": "10.0.0.1", "PRM_NODE": "10.0.0.2"}, "4b-1node", "are both host node of preset 4b-1node"),
        ({"PRM_GPUS": "2"}, "4b-1node", "PRM_GPUS=2: host node of preset 4b-1node has other roles too, and its judge takes"),
        ({"WORK_ROOT": "/a/../b"}, "4b-2nodes", "/a/../b must be an absolute path without '..'"),
    ],
)
def test_what_hosts_cannot_be_is_refused(say: Ask, environment: dict[str, str], preset: str, message: str) -> None:
    say(**environment)
    with pytest.raises(ConfigError) as error:
        load_asked(preset, {})
    assert message in str(error.value)
    assert all(f"{name}={value}" in str(error.value) for name, value in environment.items())


@pytest.mark.parametrize("address", ["10.0.0.1", "fd00::1", "::1", "node-1.example"])
def test_hosts_have_names_or_addresses(address: str) -> None:
    assert read_legacy({"MASTER_ADDR": address}).hints.master_address == address


def test_a_value_that_fits_nothing_else_is_named_with_its_variable(say: Ask) -> None:
    say(CONTEXT_LENGTH="64", PRM_M="5")
    with pytest.raises(ConfigError) as error:
        load_asked("local-cpu", {})
    message, *lines = str(error.value).splitlines()
    assert "leaves no room for a prompt in model.context_length=64" in message
    assert lines == ["from the environment: CONTEXT_LENGTH=64 → model.context_length=64"]


def test_an_error_shows_no_key() -> None:
    with pytest.raises(ConfigError) as error:
        read_legacy({"OPENCLAW_REMOTE_PRM_API_KEY": "sk-secret", "SGLANG_API_KEY": "sk secret", "OPENCLAW_KEY": "sk-secret"})
    assert "secret" not in str(error.value)
    assert len(str(error.value).splitlines()) == 3


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


def rows(heading: str) -> dict[str, str]:
    """First column → second, of the table below a heading of docs/MIGRATION.md."""
    section = MIGRATION.split(f"### {heading}\n")[1].split("\n#")[0]
    return {name: cell.strip() for name, cell in re.findall(r"^\| `([A-Z_]+)` \|([^|]*)\|", section, re.MULTILINE)}


@pytest.mark.parametrize(
    ("heading", "table"),
    [
        ("Set a parameter", PARAMETERS),
        ("Say something of the hosts", HINTS),
        ("Hold a key", KEYS),
        ("Have no parameter", RETIRED),
    ],
)
def test_the_document_has_every_name_and_no_other(heading: str, table: dict[str, Any]) -> None:
    assert list(rows(heading)) == list(table)


def test_the_document_names_the_parameters_that_are_set() -> None:
    told = {name: re.findall(r"`([^`]+)`", cell) for name, cell in rows("Set a parameter").items()}
    assert told == {name: list(parameters) for name, parameters in PARAMETERS.items()}


def test_the_document_names_the_values_that_are_accepted() -> None:
    for name, cell in rows("Have no parameter").items():
        accepted = RETIRED[name].as_it_is
        assert cell == "any" if accepted is None else set(re.findall(r"`([^`]+)`", cell)) == accepted, name


def test_every_parameter_that_the_document_names_exists() -> None:
    sections = "|".join(RunConfig.model_fields)
    named = set(re.findall(rf"`((?:{sections})\.[a-z_.]+)", MIGRATION))
    assert len(named) > 50 and named - set(parameter_names()) == set()
