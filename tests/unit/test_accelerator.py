"""What the accelerator layer says and does, on stand-ins for torch_npu, MindSpeed and Megatron (tests/npu_stand_ins).

The tests with stand-ins prove order and text: what is imported when, and which arguments are handed over. They say nothing
about an NPU, nor whether MindSpeed does with the arguments what is hoped.
"""

from __future__ import annotations

import importlib.machinery
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from openclaw_core.config import load_config
from openclaw_core.trainer import accelerator
from openclaw_core.trainer.accelerator import CPU, CUDA, NPU, megatron_arguments
from openclaw_core.weights.spec import ModelSpec
from tests.children import DEADLINE_S

STAND_INS = Path(__file__).parents[1] / "npu_stand_ins"

SPEC = ModelSpec(
    family="qwen3",
    layers=36,
    hidden=2560,
    heads=32,
    kv_heads=8,
    head_dim=128,
    ffn=9728,
    vocab_size=151936,
    tied=True,
    rope_theta=5e6,
    rms_norm_eps=1e-6,
    max_positions=262144,
)


def in_child(code: str, packages: Path = STAND_INS, arguments: tuple[str, ...] = ()) -> Any:
    """Run ``code`` in a process that finds ``packages`` first; it appends to ``events``, which is returned, with ``error``."""
    program = f"""
import json, sys
from events import EVENTS as events
from openclaw_core.trainer.accelerator import NPU, AcceleratorError
error = None
try:
{"".join(f"    {line}" + chr(10) for line in code.strip().splitlines())}
except AcceleratorError as caught:
    error = str(caught)
print(json.dumps([events, error]))
"""
    environment = os.environ | {"PYTHONPATH": f"{packages}{os.pathsep}{Path.cwd()}"}
    command = [sys.executable, "-c", program, *arguments]
    process = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert process.returncode == 0, process.stderr
    return json.loads(process.stdout)


def test_an_npu_is_prepared_in_order_and_before_megatron_and_mindspeed_sees_no_command_line() -> None:
    arguments = megatron_arguments(load_config("4b-2nodes"), SPEC)
    code = f"NPU.prepare(json.loads({json.dumps(arguments)!r}))\nimport megatron.core\nevents.append(sys.argv[1:])"
    events, error = in_child(code, arguments=("--node-ip-address=10.0.0.1", "--dtype", "fp32"))

    assert error is None
    assert events == [
        "torch_npu",
        ["mindspeed.megatron_adaptor", []],
        ["set_device", 0],
        ["repatch", arguments],
        "megatron.core",
        ["--node-ip-address=10.0.0.1", "--dtype", "fp32"],
    ]


def test_mindspeed_is_called_again_for_other_arguments_only() -> None:
    code = """
for size in (2, 2, None, 8, 8, 2):
    NPU.prepare(size and {"tensor_model_parallel_size": size})
"""
    events, error = in_child(code)
    assert error is None
    assert events[3:] == [["repatch", {"tensor_model_parallel_size": size}] for size in (2, 8, 2)]
    assert events[0] == "torch_npu"


def test_arguments_that_the_caller_changes_later_are_other_arguments() -> None:
    code = """
arguments = {"tensor_model_parallel_size": 2}
NPU.prepare(arguments)
arguments["tensor_model_parallel_size"] = 8
NPU.prepare(arguments)
"""
    events, _ = in_child(code)
    assert [event[1] for event in events[3:]] == [{"tensor_model_parallel_size": 2}, {"tensor_model_parallel_size": 8}]


def test_megatron_before_the_accelerator_is_refused_and_nothing_is_imported() -> None:
    events, error = in_child("import megatron.core\nNPU.prepare({})")
    assert events == ["megatron.core"]
    assert "megatron.core was imported before the process was prepared for npu" in error


@pytest.mark.parametrize("missing", ["torch_npu", "mindspeed"])
def test_a_missing_package_is_named(tmp_path: Path, missing: str) -> None:
    packages = shutil.copytree(STAND_INS, tmp_path / "packages", ignore=shutil.ignore_patterns(f"{missing}*"))
    _, error = in_child("NPU.prepare({})", packages)
    assert f"No module named '{missing}'" in error
    assert "Ascend image" in error


def test_a_mindspeed_without_repatch_is_refused(tmp_path: Path) -> None:
    packages = shutil.copytree(STAND_INS, tmp_path / "packages")
    (packages / "mindspeed" / "megatron_adaptor.py").write_text("")
    _, error = in_child("NPU.prepare()\nNPU.prepare({'num_layers': 36})", packages)
    assert "has no repatch()" in error


def test_memory_of_an_npu_is_what_torch_says_of_the_device() -> None:
    events, _ = in_child("NPU.prepare()\nevents.append([NPU.memory().used, NPU.memory().total])")
    assert events[-1] == [16, 64]


def test_memory_of_a_cpu_is_the_hosts() -> None:
    memory = CPU.memory()
    assert memory.total == psutil.virtual_memory().total
    assert 0 < memory.used < memory.total


@pytest.mark.parametrize(("torch_npu", "cuda", "expected"), [(True, True, NPU), (False, True, CUDA), (False, False, CPU)])
def test_an_npu_goes_before_cuda_and_cuda_before_the_cpu(
    monkeypatch: pytest.MonkeyPatch, torch_npu: bool, cuda: bool, expected: accelerator.Accelerator
) -> None:
    spec = importlib.machinery.ModuleSpec("torch_npu", None) if torch_npu else None
    monkeypatch.setattr(accelerator.importlib.util, "find_spec", lambda name: spec)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
    assert accelerator.detect() is expected


@pytest.mark.parametrize(
    ("collective_s", "connect", "execute"), [(20, "120", "68"), (600.2, "601", "601"), (1e6, "7200", "17340")]
)
def test_hccl_waits_as_long_as_the_run_allows_within_its_own_limits(collective_s: float, connect: str, execute: str) -> None:
    train = load_config("4b-2nodes", {"train.collective_s": collective_s, "train.threads": 3}).train
    environment = NPU.environment(train)
    assert (environment["HCCL_CONNECT_TIMEOUT"], environment["HCCL_EXEC_TIMEOUT"]) == (connect, execute)
    assert environment["OMP_NUM_THREADS"] == "3"
    assert {name for name in environment if "HCCL" in name or "NPU" in name}.isdisjoint(CPU.environment(train))


def test_arguments_of_the_4b_preset() -> None:
    arguments = megatron_arguments(load_config("4b-2nodes"), SPEC)
    expected = {
        "num_layers": 36,
        "tensor_model_parallel_size": 2,
        "data_parallel_size": 2,
        "world_size": 4,
        "sequence_parallel": True,
        "use_distributed_optimizer": True,
        "accumulate_allreduce_grads_in_fp32": True,
        "use_flash_attn": True,
        "recompute_granularity": "full",
        "recompute_method": "uniform",
        "recompute_num_layers": 1,
        "bf16": True,
    }
    assert {name: arguments[name] for name in expected} == expected


def test_arguments_of_a_group_of_its_own_size() -> None:
    arguments = megatron_arguments(load_config("4b-2nodes"), SPEC, tensor_parallel=1, world_size=3)
    names = ("tensor_model_parallel_size", "data_parallel_size", "world_size", "sequence_parallel")
    assert [arguments[name] for name in names] == [1, 3, 3, False]


def test_the_shim_and_megatron_stay_out_of_the_processes_that_do_not_train() -> None:
    code = """
import importlib, sys, torch
before = {name: getattr(torch, name) for name in ("zeros", "tensor", "arange")} | {"type": torch.Tensor.type}
for name in ("loop.service", "trainer.group", "engines.local", "gateway.app", "judge", "feeder", "evaluation", "cli"):
    importlib.import_module(f"openclaw_core.{name}")
after = {name: getattr(torch, name) for name in ("zeros", "tensor", "arange")} | {"type": torch.Tensor.type}
print(before == after, "openclaw_core.trainer.cpu_backend" in sys.modules, "megatron.core" in sys.modules)
"""
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert process.stdout.split() == ["True", "False", "False"], process.stderr
