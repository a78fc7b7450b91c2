"""The environment names of the earlier scripts: what they set, and what is refused."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from openclaw_core.config import ConfigError, RunConfig, load_config
from openclaw_core.config.env import EXTERNAL_KEYS, cluster_hints, load_asked
from openclaw_core.config.known_names import OPENCLAW_CLI, OWN
from openclaw_core.config.legacy import HINTS, KEYS, PARAMETERS, RETIRED, ClusterHints, read_legacy
from tests.environment import EARLIER, Ask

pytestmark = pytest.mark.usefixtures("say")
ROOT = Path(__file__).parents[2]

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
