"""The plan's sums, what it refuses, and what it says. The bytes themselves are checked in tests/integration."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from openclaw_core.cli import app
from openclaw_core.config import RunConfig, load_config
from openclaw_core.losses.head import TILE
from openclaw_core.planning import Plan, PlanError, architecture, hccl, head, make_plan, report
from openclaw_core.planning.activations import Pass
from openclaw_core.planning.architecture import KNOWN
from openclaw_core.planning.disk import kept_checkpoints
from openclaw_core.planning.placement import place_ranks
from openclaw_core.planning.plan import HBM_BYTES
from openclaw_core.planning.serving import cache_bytes_per_token
from openclaw_core.planning.weights import checkpoint_bytes, hf_parameters, parameter_sizes
from openclaw_core.weights.errors import ModelError
from openclaw_core.weights.names import hf_shapes
from openclaw_core.weights.spec import ModelSpec

PRESETS = ("local-cpu", "4b-1node", "4b-2nodes", "32b-8nodes")
GOLDEN = Path(__file__).parents[1] / "golden"
QWEN_4B = ModelSpec.from_hf(KNOWN / "Qwen3-4B-Thinking-2507.json")
QWEN_32B = ModelSpec.from_hf(KNOWN / "Qwen3-32B.json")
GB = 10**9
ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def no_downloads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def plan(preset: str, settings: dict[str, Any] | None = None) -> Plan:
    return make_plan(load_config(preset, settings), memory=16 * GB)


def text_of(made: Plan) -> str:
    console = Console(width=140, record=True, file=None, quiet=True)
    with console.capture() as captured:
        console.quiet = False
        console.print(report.render(made))
    return captured.get()


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_fits(preset: str) -> None:
    made = plan(preset)
    assert made.fits and not made.remedies
    assert all(budget.headroom >= 0.1 for budget in made.budgets)


@pytest.mark.parametrize("preset", ["4b-1node", "4b-2nodes", "32b-8nodes"])
def test_the_plan_of_a_cluster_is_this_text(preset: str) -> None:
    """UPDATE_GOLDEN=1 writes it anew."""
    file, text = GOLDEN / f"plan_{preset}.txt", text_of(plan(preset))
    if os.environ.get("UPDATE_GOLDEN"):
        file.write_text(text, encoding="utf-8")
    assert text == file.read_text(encoding="utf-8")


def test_without_npus_engines_are_spread_over_the_hosts_that_may_have_them() -> None:
    hosts = [
        {"name": "a", "roles": ["train", "rollout"]},
        {"name": "b", "roles": ["prm"]},
        {"name": "c", "roles": ["rollout"]},
    ]
    placement = place_ranks(load_config("2nodes-sim", {"cluster.hosts": hosts, "engine.count": 3}))
    assert placement.engine.hosts == ("a", "c", "a")
    assert placement.trainer.hosts == ("a",)
    assert place_ranks(load_config("local-cpu", {"engine.count": 2})).engine.hosts == ("localhost", "localhost")


def test_on_one_node_the_judge_has_the_npu_that_the_others_leave() -> None:
    placement = plan("4b-1node").placement
    assert placement.judge is not None
    assert (placement.judge.ranks, placement.judge.hosts, placement.judge.cards) == (1, ("node",), ((7,),))
    assert [role.cards_on("node") for role in placement.roles] == [(0, 1, 2, 3), (6,), (4, 5)]


def test_a_judge_without_a_free_npu_is_refused_with_the_sum() -> None:
    with pytest.raises(PlanError) as error:
        plan("4b-1node", {"scorer.tensor_parallel": 2})
    assert "judge: no NPU is left for it on a host of role prm (node 8 - 4 trainer - 2 engine - 2 scorer = 0 free)" in str(
        error.value
    )


def test_a_judge_takes_a_power_of_two_of_the_npus_that_every_judge_host_has_left() -> None:
    hosts = [
        {"name": "train", "roles": ["train", "rollout", "teacher"], "npus": 8},
        {"name": "prm", "roles": ["prm"], "npus": 7},
        {"name": "prm-2", "roles": ["prm"], "npus": 8},
    ]
    judge = plan("4b-2nodes", {"cluster.hosts": hosts}).placement.judge
    assert judge is not None and judge.cards == ((0, 1, 2, 3), (0, 1, 2, 3))


def test_a_judge_of_another_size_is_counted_where_its_sizes_are_known() -> None:
    def judge(settings: dict[str, Any]) -> list[int]:
        return [rank.held["parameters"] for rank in plan("4b-2nodes", settings).ranks if rank.role.name == "judge"]

    assert judge({"judge.model": "Qwen3-32B"}) == [sum(parameter_sizes(QWEN_32B, 8)) * 2]
    assert judge({"judge.model": "Other-7B"}) == []
    assert "not counted, the sizes of its model are not known" in text_of(plan("4b-2nodes", {"judge.model": "Other-7B"}))
    elsewhere = {"judge.client": "openai", "judge.base_urls": ["https://j/v1"], "judge.model": "j"}
    assert plan("4b-2nodes", elsewhere).placement.judge is None
    assert plan("4b-2nodes", {"judge.base_urls": ["http://j:30000"]}).placement.judge is None
    assert "judge: openai, without NPUs of these hosts" in text_of(plan("4b-2nodes", elsewhere))


def test_the_judges_cache_holds_all_votes_on_a_turn() -> None:
    (judge,) = [rank for rank in plan("4b-1node").ranks if rank.role.name == "judge"]
    assert judge.held["key-value cache"] == 2 * 3 * (2 * 8192 + 8192) * cache_bytes_per_token(QWEN_4B, 2, 1)


def test_a_model_is_on_a_disk_once() -> None:
    one, two = ({host.host: host.items for host in plan(preset).hosts} for preset in ("4b-1node", "4b-2nodes"))
    assert "judge's model" not in one["node"]
    assert two["prm"]["judge's model"] == hf_parameters(QWEN_4B) * 2


@pytest.mark.parametrize("spec", [QWEN_4B, QWEN_32B, replace(QWEN_32B, vocab_size=151_900)])
def test_parameters_are_counted_as_the_model_files_have_them(spec: ModelSpec) -> None:
    real = sum(_product(shape) for shape in hf_shapes(spec).values())
    assert hf_parameters(spec) == real
    assert sum(parameter_sizes(spec)) >= real


def test_a_32b_checkpoint_has_14_bytes_a_parameter() -> None:
    assert checkpoint_bytes(QWEN_32B, "bf16") == 14 * hf_parameters(QWEN_32B)
    assert checkpoint_bytes(QWEN_32B, "bf16") == pytest.approx(460 * GB, rel=0.01)
    hosts = {host.host: host.items for host in plan("32b-8nodes").hosts}
    written = [items["checkpoints"] for items in hosts.values() if "checkpoints" in items]
    assert written == [3 * checkpoint_bytes(QWEN_32B, "bf16") // 4] * 4
    assert hosts["master"]["image"] is None
    assert "checkpoints" not in hosts["teacher"] and "start weights (torch_dist)" in hosts["teacher"]


def test_checkpoints_kept_for_good_are_those_that_are_saved_at_all() -> None:
    def kept(**train: Any) -> int:
        return kept_checkpoints(load_config("4b-2nodes", {f"train.{name}": value for name, value in train.items()}).train)

    assert kept(keep_last=2) == 3
    assert kept(keep_last=2, keep_every=100, steps=2000, save_interval=20) == 3 + 20
    assert kept(keep_last=2, keep_every=30, steps=2000, save_interval=20) == 3 + 33


def test_a_rank_that_does_not_fit_is_refused_with_its_sum_and_what_would_help() -> None:
    made = plan("4b-2nodes", {"train.recompute": "none", "train.distributed_optimizer": False})
    (failing,) = [budget for budget in made.budgets if not budget.fits]
    assert failing.limit == HBM_BYTES and failing.needed == sum(failing.parts.values()) > HBM_BYTES
    lines = [line.plain for line in report.verdicts(made)]
    assert any(line.startswith("REFUSED: trainer rank needs") for line in lines)
    summed = next(line for line in lines if " + " in line)
    assert "optimiser 24.1" in summed and summed.endswith(f"= {failing.needed / GB:.1f}")
    assert any("--set train.recompute=full: trainer rank" in line and line.endswith("fits") for line in lines)
    assert plan("4b-2nodes", {"train.recompute": "full", "train.distributed_optimizer": False}).fits


def test_a_headroom_below_ten_percent_is_refused() -> None:
    needed = plan("local-cpu").budgets[0].needed
    config = load_config("local-cpu")
    assert make_plan(config, memory=int(needed / 0.9) + 1).fits
    assert not make_plan(config, memory=int(needed / 0.9) - 1).fits


def test_ranks_of_a_cpu_share_the_memory_of_the_machine() -> None:
    one, two = plan("local-cpu"), plan("local-cpu", {"train.data_parallel": 2})
    trainer = one.ranks[0].total
    assert two.budgets[0].needed - one.budgets[0].needed == trainer
    assert [budget.name for budget in one.budgets] == ["memory of localhost"]


@pytest.mark.parametrize(
    ("preset", "settings", "words"),
    [
        ("4b-2nodes", {"train.data_parallel": 5}, "trainer: 5 x 2 = 10 NPUs do not fit into those of role train (train 8 = 8"),
        (
            "4b-2nodes",
            {"train.data_parallel": 4},
            "engine: 1 x 2 = 2 NPUs do not fit into those of role rollout (train 8 - 8 trainer = 0 free)",
        ),
        (
            "4b-2nodes",
            {"train.data_parallel": 3},
            "scorer: 1 x 2 = 2 NPUs do not fit into those of role teacher (train 8 - 6 trainer - 2 engine = 0 free)",
        ),
        (
            "4b-2nodes",
            {"engine.sglang.tensor_parallel": 8, "engine.sglang.devices": []},
            "engine: 1 x 8 = 8 NPUs do not fit into those of role rollout (train 8 - 4 trainer = 4 free); one copy needs",
        ),
        (
            "32b-8nodes",
            {"engine.count": 3},
            "engine: 3 x 8 = 24 NPUs do not fit into those of role rollout (rollout-1 8 + rollout-2 8 = 16 free); 2 of 3 ",
        ),
        (
            "4b-2nodes",
            {"engine.sglang.devices": [0, 1]},
            "not the engine's NPUs on train, which are shared out as: trainer 0-3; scorer 6-7; engine 4-5; "
            "leave engine.sglang.devices out, or set them to [4, 5] and base_gpu_id to 0",
        ),
        ("4b-2nodes", {"engine.sglang.devices": [5, 4]}, "leave engine.sglang.devices out, or set them to [4, 5] and base_"),
        ("32b-8nodes", {"engine.sglang.devices": [7, 6, 5, 4, 3, 2, 1, 0]}, "shared out as: engine 0-7; leave"),
        (
            "32b-8nodes",
            {
                "cluster.hosts": [
                    {"name": f"h{i}", "roles": ["train", "rollout", "teacher", "prm"], "npus": 7} for i in range(9)
                ]
            },
            "one copy needs 8 NPUs of one host and the largest has 7 free",
        ),
        (
            "4b-2nodes",
            {"cluster.hosts": [{"name": "a", "roles": ["train", "rollout", "prm"], "npus": 8}]},
            "no host of cluster.hosts has the role 'teacher'",
        ),
        ("4b-2nodes", {"model.context_length": 300_000}, "over the 262144 positions"),
    ],
)
def test_a_layout_that_does_not_add_up_is_refused(preset: str, settings: dict[str, Any], words: str) -> None:
    with pytest.raises(PlanError) as error:
        plan(preset, settings)
    assert words in str(error.value)


def test_weights_and_cache_must_fit_into_sglangs_share_of_a_card() -> None:
    made = plan("4b-2nodes", {"engine.sglang.mem_fraction_static": 0.4})
    (failing,) = [budget for budget in made.budgets if not budget.fits]
    assert failing.name == "mem_fraction_static of an engine rank" and failing.limit == int(0.4 * HBM_BYTES)
    assert failing.parts["key-value cache"] == made.ranks[2].held["key-value cache"]


def test_a_split_that_the_model_does_not_allow_is_refused() -> None:
    for split in ({"train.tensor_parallel": 3}, {"engine.sglang.tensor_parallel": 3, "engine.sglang.devices": []}):
        with pytest.raises(ModelError, match="tensor_parallel=3 does not divide kv_heads=8"):
            plan("4b-2nodes", {**split, "train.data_parallel": 1})


def test_all_ranks_of_a_copy_are_on_one_host() -> None:
    placement = plan("32b-8nodes").placement
    assert placement.trainer.hosts == ("master", "actor-1", "actor-2", "actor-3")
    assert placement.scorer is not None and placement.scorer.hosts == ("teacher",)
    assert placement.engine.hosts == ("rollout-1", "rollout-2") and placement.engine.ranks == 8
    small = plan("4b-2nodes").placement
    assert [role.ranks_on("train") for role in small.roles] == [4, 2, 2]
    assert [role.cards_on("train") for role in small.roles] == [(0, 1, 2, 3), (6, 7), (4, 5)]


def test_the_downloaded_config_comes_before_what_the_package_knows(tmp_path: Path) -> None:
    config = load_config("4b-2nodes")
    assert architecture.read_architecture(config).source.parent == KNOWN
    directory = tmp_path / "models" / config.model.name / "hf"
    directory.mkdir(parents=True)
    fields = json.loads((KNOWN / "Qwen3-4B-Thinking-2507.json").read_text())
    (directory / "config.json").write_text(json.dumps(fields | {"num_hidden_layers": 12}))
    read = architecture.read_architecture(config)
    assert read.spec.layers == 12 and str(read.source) == f"models/{config.model.name}/hf/config.json"


def test_an_unknown_model_names_the_missing_file() -> None:
    with pytest.raises(PlanError, match=r"models/Other-7B/hf/config\.json is missing"):
        plan("4b-2nodes", {"model.name": "Other-7B"})


def test_the_start_model_is_held_where_something_needs_it() -> None:
    def holds(settings: dict[str, Any]) -> bool:
        scorer = next(rank for rank in plan("4b-2nodes", settings).ranks if rank.role.name == "scorer")
        return "start model" in scorer.held

    assert holds({})
    assert not holds({"loss.kl_coef": 0})
    assert holds({"loss.kl_coef": 0, "teacher.mode": "frozen"})
    assert not holds({"loss.kl_coef": 0, "teacher.mode": "frozen", "loss.w_opd": 0})


def test_flash_attention_keeps_no_pairs_of_positions() -> None:
    def kept(length: int, flash: bool) -> int:
        return Pass(QWEN_4B, "bf16", positions=8192, length=length, flash=flash).kept_by_layer()

    rotary = 4 * (8192 - 4096) * QWEN_4B.head_dim * 2
    assert kept(8192, True) - kept(4096, True) == rotary
    pairs = 8192 * (8192 - 4096) * QWEN_4B.heads
    assert kept(8192, False) - kept(4096, False) == 6 * pairs + rotary


def test_recompute_and_sequence_parallelism_share_out_what_is_kept() -> None:
    whole = Pass(QWEN_4B, "bf16", 65536, 65536, 2, flash=True, recompute=True)
    shared = replace(whole, sequence_parallel=True)
    layers = QWEN_4B.layers * 65536 * QWEN_4B.hidden * 2
    final_norm = 65536 * (2 * QWEN_4B.hidden + 1) * 4
    assert whole.kept() - shared.kept() == (layers + final_norm) // 2
    assert replace(shared, recompute=False).kept() > 10 * shared.kept()


def test_a_sample_longer_than_the_limit_is_what_a_micro_batch_can_hold() -> None:
    def work(tokens: int) -> int:
        return plan("4b-2nodes", {"train.max_tokens_per_rank": tokens}).ranks[0].work

    assert work(1024) == work(65536) < work(131072)


def test_cache_and_communicators_of_the_known_models() -> None:
    assert cache_bytes_per_token(QWEN_4B, 2, 2) == 2 * 36 * 4 * 128 * 2
    assert plan("4b-2nodes").ranks[2].held["key-value cache"] == 4 * 65536 * cache_bytes_per_token(QWEN_4B, 2, 2)
    assert hccl.communicators(2, 2, trains=True) == ("tensor", "data", "norm")
    assert hccl.communicators(1, 1, trains=True) == ()
    assert hccl.buffer_bytes(1) == 2 * 200 * 2**20


def test_the_head_is_counted_with_the_tile_that_it_works_with() -> None:
    assert head.TILE == TILE


@pytest.mark.parametrize("preset", PRESETS)
def test_the_report_has_every_part_and_every_host(preset: str) -> None:
    made = plan(preset)
    text = text_of(made)
    names = [name for rank in made.ranks for name in (*rank.held, *rank.phases)]
    assert all(name in text for name in (*names, *(host.host for host in made.hosts)))
    assert text.count("fits: ") == len(made.budgets)


def test_the_command_refuses_by_its_exit_code() -> None:
    runner = CliRunner()
    good = runner.invoke(app, ["plan", "--preset", "4b-2nodes"])
    assert good.exit_code == 0 and "fits: trainer rank" in good.output
    bad = runner.invoke(app, ["plan", "--preset", "4b-2nodes", "--set", "train.recompute=none", "--json"])
    told = json.loads(bad.output)
    assert bad.exit_code == 1 and told["fits"] is False
    assert told["budgets"][0]["needed"] == told["ranks"][0]["total"]
    assert any(remedy["fits"] for remedy in told["remedies"])


def test_every_remedy_is_a_setting_that_the_configuration_knows() -> None:
    config: RunConfig = load_config("4b-2nodes", {"train.recompute": "none", "model.context_length": 131_072})
    made = make_plan(config)
    assert made.remedies
    for remedy in made.remedies:
        load_config("4b-2nodes", remedy.settings)


def test_a_plan_needs_no_torch() -> None:
    code = (
        "import sys; from openclaw_core.config import load_config; from openclaw_core.planning import make_plan, report; "
        "report.as_json(make_plan(load_config('4b-2nodes'))); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env=os.environ | {"PYTHONPATH": str(ROOT)})


def _product(shape: tuple[int, ...]) -> int:
    size = 1
    for dimension in shape:
        size *= dimension
    return size
