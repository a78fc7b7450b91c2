"""env-check of NPUs and of what the image brings for them: invented facts and what is said about them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from openclaw_core.cluster.host_checks.facts import Module
from openclaw_core.cluster.host_checks.looking import judge, make_asked
from openclaw_core.cluster.host_checks.rows import Asked
from openclaw_core.cluster.host_checks.versions import CANN, DRIVER, MODULES, PACKAGES, driver_is_enough
from openclaw_core.cluster.npu import parse_npus
from openclaw_core.cluster.orphans import Owner, Process, Recorded, holders
from openclaw_core.config import load_config
from tests.host_facts import CODE, OURS, ROOT, RUN, THEIRS, fit, host_named, inside, only_red, red, rows_of, sample


@pytest.fixture(scope="module")
def asked() -> Asked:
    """A run of the preset for two hosts with 8 NPUs each: train (train, rollout, teacher) and prm."""
    return make_asked(load_config("4b-2nodes", {}), RUN, CODE)


def test_warnings_of_a_chip_are_shown_and_an_alarm_is_red(asked: Asked):
    rows = rows_of(asked, npus=parse_npus(sample("a2_sick")))
    health = [(row.value, row.ok) for row in rows if row.check == "npu health" and row.host == "prm"]
    assert health == [("NPU 5: Warning", True), ("NPU 7: Alarm", False)]
    assert [row.value for row in rows if row.check == "npu memory" and not row.ok] == ["NPU 7: not told"]


def busy(asked: Asked, run_of_first: str | None) -> dict[str, Any]:
    npus = parse_npus(sample("a2_busy"))
    processes = {
        pid: Process(Recorded(pid, 1, "boot"), "python3 -m x", container)
        for pid, container in ((70411, OURS), (70419, OURS), (70412, OURS), (81002, THEIRS), (81003, None))
    }
    containers = {OURS: Owner("openclaw-head", run_of_first), THEIRS: Owner("vllm", None)}
    return {"npus": npus, "holders": holders(npus, processes, containers)}


def test_foreign_processes_are_red_with_pid_and_container_and_their_memory_by_chip(asked: Asked):
    rows = red(rows_of(asked, **busy(asked, "old")))
    told = {row.value: row.advice for row in rows if row.check == "npu processes"}
    assert [text.split()[1] for text in told] == ["70411", "70412", "70419", "81002", "81003"]
    assert any("container openclaw-head of run old" in value and "openclaw-rl stop old" in told[value] for value in told)
    assert any("container vllm" in value and "whoever owns container vllm" in told[value] for value in told)
    memory = [row.value for row in rows if row.check == "npu memory"]
    assert memory[0] == "NPU 0: 58,110 of 65,536 MB in use" and len(memory) == 4


def test_what_this_run_holds_itself_is_neither_foreign_nor_too_much(asked: Asked):
    rows = red(rows_of(asked, **busy(asked, RUN)))
    assert [row.value.split()[1] for row in rows if row.check == "npu processes"] == ["81002", "81003"]
    assert [row.value.split(":")[0] for row in rows if row.check == "npu memory"] == ["NPU 2", "NPU 3"]


def test_npus_that_the_run_does_not_take_may_do_what_they_like(asked: Asked):
    few = host_named(asked, address="10.0.0.2", npus=2)
    facts = {**busy(asked, RUN), "config": few, "inside": inside(devices=2)}
    assert not red(rows_of(asked, **facts))
    more = red(rows_of(asked, config=host_named(asked, address="10.0.0.2", npus=16)))
    assert "cluster.hosts says 16, and 8 of them are there" in next(row.advice for row in more if row.check == "npu")


def test_the_commit_and_the_path_of_what_is_imported_are_compared(asked: Asked):
    other = inside()
    other.modules["megatron.core"] = Module("/opt/stack/Megatron-LM/megatron/core", "0.16.0rc0", "0" * 40)
    row = only_red(judge([replace(fit(asked, 0), inside=other), fit(asked, 1)], asked))
    assert row.check == "megatron.core" and "commit 000000000000" in row.value and "commit 3714d81d418c" in row.advice
    other = inside()
    other.modules["openclaw_core"] = Module("/opt/openclaw/venv/openclaw_core", None, None)
    row = only_red(judge([replace(fit(asked, 0), inside=other), fit(asked, 1)], asked))
    assert row.check == "openclaw_core" and "PYTHONPATH" in row.advice


def test_versions_are_those_of_the_image_s_files():
    pins = (ROOT / "image/pins.txt").read_text() + (ROOT / "image/requirements.lock").read_text()
    stack = (ROOT / "image/stack.Dockerfile").read_text()
    for name, version in {**PACKAGES, "sglang": MODULES["sglang"][0], "megatron-core": MODULES["megatron.core"][0]}.items():
        assert f"\n{name.replace('_', '-')}=={version}" in f"\n{pins}".replace("torch_npu", "torch-npu"), name
    assert f"\nmindspeed=={MODULES['mindspeed'][0]}" in pins
    assert f"MEGATRON_COMMIT={MODULES['megatron.core'][1]}" in stack
    assert f"MINDSPEED_COMMIT={MODULES['mindspeed'][1]}" in stack
    assert f"cann:{CANN}-910b" in stack


@pytest.mark.parametrize(
    ("version", "enough"), [("25.5.0", True), ("25.3.rc1", True), ("26.0.rc2", True), ("25.2.0", False), ("24.1.rc3", False)]
)
def test_drivers_are_compared_by_their_numbers(version: str, enough: bool):
    assert DRIVER == (25, 3) and driver_is_enough(version) is enough
