"""env-check on hosts: invented facts and what is said about them. What real hosts say: tests/cluster/test_host_checks.py."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from openclaw_core.cluster.docker.containers import Found
from openclaw_core.cluster.host_checks.facts import (
    Clock,
    Disk,
    EngineFacts,
    HostCheck,
    ImageFacts,
    Interface,
    Lost,
    Peer,
)
from openclaw_core.cluster.host_checks.looking import check_hosts, judge, make_asked, table
from openclaw_core.cluster.host_checks.rows import Asked
from openclaw_core.cluster.host_checks.versions import PACKAGES
from openclaw_core.cluster.hosts import Hosts
from openclaw_core.cluster.npu import parse_npus
from openclaw_core.config import load_config
from tests.host_facts import CODE, GB, IMAGE, RUN, fit, host_named, inside, only_red, red, rows_of, sample


@pytest.fixture(scope="module")
def asked() -> Asked:
    """A run of the preset for two hosts with 8 NPUs each: train (train, rollout, teacher) and prm."""
    return make_asked(load_config("4b-2nodes", {}), RUN, CODE)


def test_fit_hosts_have_no_red_and_no_yellow_row(asked: Asked):
    rows = rows_of(asked)
    assert [str(row) for row in rows if not row.ok or row.advice] == []
    assert [row.host for row in rows] == sorted((row.host for row in rows), key=["train", "prm"].index)
    seen = {row.check for row in rows if row.host == "train"}
    assert seen >= {
        "ssh",
        "clock",
        "docker",
        "image",
        "work_root",
        "disk",
        "memory",
        "ports",
        "interface",
        "other hosts",
        "code",
    }
    assert seen >= {"model", "npu", "driver", "npu health", "npu memory", "npu processes", "CANN", "torch_npu devices"}
    assert seen >= {"megatron.core", "mindspeed", "sglang", "torch_npu", "openclaw_core"}
    assert "megatron.core" not in {row.check for row in rows if row.host == "prm"}


def test_a_host_that_is_away_is_one_red_row_and_the_others_are_judged(asked: Asked):
    lost = Lost(asked.cluster.hosts[1], "root@prm port 22 cannot be reached: no route to host")
    rows = list(judge([fit(asked, 0), lost], asked))
    row = only_red(rows)
    assert (row.host, row.check) == ("prm", "ssh")
    assert "no route" in row.value and "ssh -p 22 root@prm" in row.advice
    assert len([row for row in rows if row.host == "train"]) > 15


def test_a_host_that_was_reached_and_failed_is_told_apart(asked: Asked):
    row = only_red(judge([fit(asked, 0), Lost(asked.cluster.hosts[1], "df -Pk said ''", reached=True)], asked))
    assert (row.host, row.check, row.value) == ("prm", "commands", "df -Pk said ''")


@pytest.mark.parametrize(
    ("changes", "check", "value", "advice"),
    [
        ({"clock": Clock(2.5, 0.1)}, "clock", "+2.50 s", "at least 2.4 s from this machine"),
        ({"clock": Clock(0, 3)}, "clock", "known to 3.00 s", "takes too long"),
        ({"engine": "no such file"}, "docker", "no such file", "systemctl start docker"),
        ({"engine": EngineFacts("27", None, ())}, "image", "is not there", "distribute-image"),
        ({"engine": EngineFacts("27", ImageFacts(IMAGE, "amd64"), ())}, "image", "for amd64", "the host is aarch64"),
        ({"engine": EngineFacts("27", ImageFacts("sha256:2", "arm64"), ())}, "image", " 2 ", "train has 111111111111"),
        ({"disk": Disk("/data/openclaw", 5000 * GB, "xfs", 0, "Read-only file system")}, "work_root", "xfs", "Read-only"),
        ({"disk": Disk("/data/openclaw", GB, "xfs", 0, None)}, "disk", "1.0 GB free", "make room"),
        ({"available": 10 * GB}, "memory", "10.0 GB available", "end what else runs"),
        ({"interfaces": (Interface("enp1", False, ("10.0.0.2",)),)}, "interface", "down", "ip link set enp1 up"),
        ({"interfaces": (Interface("enp1", True, ("10.9.9.9",)),)}, "interface", "none of enp1 has", "set interface of prm"),
        ({"peers": (Peer("train", "no answer in time"),)}, "other hosts", "train: no answer in time", "firewall"),
        ({"code": None}, "code", "none of it", "wanted is cccc"),
        ({"code": "e" * 64}, "code", "eeee", "wanted is cccc"),
        ({"npus": "there is no npu-smi"}, "npu", "there is no npu-smi", "set npus of prm to 0"),
        ({"npus": parse_npus(sample("a3_two_chips").replace("12850", "2850 "))}, "npu", "Ascend910 (A3)", "for Atlas A2"),
        ({"driver": "24.1.rc3"}, "driver", "24.1.rc3", "25.3 or newer"),
        ({"inside": "container r ended with status 125"}, "container", "status 125", "cluster.mounts"),
        ({"inside": inside(cann="8.3.RC1")}, "CANN", "8.3.RC1", "wanted is 8.5.0"),
        ({"inside": inside(devices=7)}, "torch_npu devices", "7", "wanted is 8"),
        ({"inside": inside(devices=None, problem="ImportError: libhccl.so")}, "torch_npu devices", "libhccl.so", "set_env.sh"),
        ({"inside": inside(packages={**PACKAGES, "torch": "2.9.0+cpu"})}, "torch", "2.9.0+cpu", "wanted is 2.8.0"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_the_one_red_row_of_that_host(
    asked: Asked, changes: dict[str, Any], check: str, value: str, advice: str
):
    row = only_red(rows_of(asked, **changes))
    assert (row.host, row.check) == ("prm", check)
    assert value in row.value and advice in row.advice


def test_two_clocks_are_each_within_the_limit_and_too_far_apart(asked: Asked):
    rows = judge([replace(fit(asked, 0), clock=Clock(-1.5, 0.1)), replace(fit(asked, 1), clock=Clock(1.5, 0.1))], asked)
    assert "at least 2.8 s from train" in only_red(rows).advice


def test_a_skew_that_may_be_the_round_trip_s_is_not_red(asked: Asked):
    assert not red(rows_of(asked, clock=Clock(2.5, 1.0)))


def test_what_is_on_the_disk_already_is_not_needed_again(asked: Asked):
    assert isinstance(asked.needs, dict)
    need = asked.needs["prm"].total
    tight = Disk("/data/openclaw", need // 2, "xfs", 0, None)
    assert only_red(rows_of(asked, disk=tight)).check == "disk"
    assert not red(rows_of(asked, disk=replace(tight, present=need // 2 + 1)))


def test_unknown_needs_are_a_warning_with_their_reason(asked: Asked):
    unknown = replace(asked, needs="the architecture of 'x' is not known")
    rows = [row for row in rows_of(unknown) if row.check == "disk"]
    assert all(row.ok and "'x' is not known" in row.advice for row in rows)


def test_a_place_that_is_not_made_yet_is_no_fault_and_one_that_is_shared_is_a_warning(asked: Asked):
    rows = rows_of(asked, disk=Disk("/data", 5000 * GB, "xfs", 0, None))
    assert not red(rows) and any("to be made below /data" in row.value for row in rows)
    for changes in ({"shared_with": ("train",)}, {"disk": Disk("/data/openclaw", 5000 * GB, "nfs", 0, None)}):
        warned = [row for row in rows_of(asked, **changes) if row.advice]
        assert [(row.host, row.check, row.ok) for row in warned] == [("prm", "work_root", True)]
        assert "a disk of its own" in warned[0].advice


def test_ports_of_gateway_control_ray_and_engines_are_looked_at_where_they_are_opened(asked: Asked):
    for port, setting in ((30000, "ports.gateway"), (6379, "ports.ray_gcs"), (30010, "engine.sglang.port")):
        taken = frozenset({22, port})
        row = only_red(judge([replace(fit(asked, 0), listening=taken), fit(asked, 1)], asked))
        assert (row.host, row.check, row.value) == ("train", "ports", f"{port} ({setting}) is taken")
        assert not [row for row in red(rows_of(asked, listening=taken)) if "ray" in row.value or "engine" in row.value]


def test_ports_and_memory_in_use_by_this_run_are_its_own(asked: Asked):
    head = Found("openclaw-r-head", "head", RUN, "running", None, "1")
    alive = replace(
        fit(asked, 0),
        listening=frozenset({22, 30000, 6379}),
        available=GB,
        engine=EngineFacts("27", ImageFacts(IMAGE, "arm64"), (head,)),
    )
    assert not red(judge([alive, fit(asked, 1)], asked))
    dead = replace(alive, engine=EngineFacts("27", ImageFacts(IMAGE, "arm64"), (replace(head, state="exited", exit_code=1),)))
    assert {row.check for row in red(judge([dead, fit(asked, 1)], asked))} == {"ports", "memory"}


def test_another_run_s_container_is_red_with_its_name_also_when_it_has_ended(asked: Asked):
    other = Found("openclaw-old-worker", "worker", "old", "exited", 1, "2")
    row = only_red(rows_of(asked, engine=EngineFacts("27", ImageFacts(IMAGE, "arm64"), (other,))))
    assert row.value == "old has openclaw-old-worker here, exited"
    assert "openclaw-rl stop old" in row.advice


def test_an_own_name_that_is_loopback_or_unknown_is_red(asked: Asked):
    for resolved in (("127.0.1.1",), ()):
        row = only_red(rows_of(asked, config=host_named(asked, address="prm.example"), resolved=resolved))
        assert row.check == "interface" and "prm.example" in row.value and "/etc/hosts" in row.advice
    assert not red(rows_of(asked, config=host_named(asked, address="prm.example"), resolved=("10.0.0.2",)))


def test_a_named_interface_must_be_there_and_one_without_the_address_is_a_warning(asked: Asked):
    missing = only_red(rows_of(asked, config=host_named(asked, address="10.0.0.2", interface="bond0")))
    assert missing.value == "there is no bond0" and "lo, enp1" in missing.advice
    interfaces = (*fit(asked, 1).interfaces, Interface("bond0", True, ("10.1.0.2",)))
    rows = rows_of(asked, config=host_named(asked, address="10.0.0.2", interface="bond0"), interfaces=interfaces)
    assert [row.advice for row in rows if row.advice] == ["10.0.0.2 is not an address of bond0"]


def test_models_must_be_the_same_and_are_missing_only_once_a_run_has_begun(asked: Asked):
    row = only_red(rows_of(asked, model="f" * 64))
    assert (row.host, row.check) == ("prm", "model") and "train has other files" in row.advice
    assert only_red(rows_of(asked, model=None)).value == "Qwen3-4B-Thinking-2507 is not there"
    before = replace(asked, code=None)
    assert not red(rows_of(before, model=None))


def test_the_table_has_every_row_and_takes_nothing_for_markup(asked: Asked):
    rows = [*rows_of(asked), HostCheck("prm", "clock", "[red]x[/red]", False, "[bold] do")]
    console = Console(width=200, record=True, file=open(os.devnull, "w"))  # noqa: SIM115, PTH123
    console.print(table(rows))
    text = console.export_text()
    assert "[red]x[/red]" in text and "[bold] do" in text
    assert text.count("torch_npu devices") == 2
    # What is wrong is seen without colours too.
    assert text.count(" NO ") == 1
    console.print(table(rows, {"clock"}))
    text = console.export_text()
    assert " NO " not in text and text.count("not counted") == 1


def test_roles_without_a_place_are_a_red_row_and_no_host_is_asked():
    config = load_config("4b-2nodes", {"train.data_parallel": 5})
    with Hosts(config.cluster) as nowhere:
        row = only_red(check_hosts(config, RUN, nowhere))
    assert (row.host, row.check) == ("all hosts", "placement")
    assert "trainer: 5 x 2 = 10 NPUs do not fit" in row.value and "openclaw-rl plan" in row.advice
