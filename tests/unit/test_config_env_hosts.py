"""The environment names that say something of hosts, laid over those of a preset."""

from __future__ import annotations

import json

import pytest

from openclaw_core.config import ConfigError, load_config
from openclaw_core.config.env import load_asked
from openclaw_core.config.legacy import read_legacy
from tests.environment import Ask

pytestmark = pytest.mark.usefixtures("say")


def test_what_is_said_of_hosts_is_laid_over_those_of_the_preset(say: Ask) -> None:
    say(MASTER_ADDR="10.0.0.1", PRM_NODE="10.0.0.2", WORK_ROOT="/data/work", PRM_GPUS="4")
    say(http_proxy="http://proxy:3128", NO_PROXY="mirror")
    asked = load_asked("4b-2nodes", {"train.steps": 3})
    train, prm = asked.config.cluster.hosts
    assert (train.address, train.npus, str(train.work_root)) == ("10.0.0.1", 8, "/data/work")
    assert (prm.address, prm.npus, str(prm.work_root)) == ("10.0.0.2", 4, "/data/work")
    assert (train.roles, prm.roles) == (("train", "rollout", "teacher"), ("prm",))
    assert asked.config.judge_urls == ("http://10.0.0.2:30020",)
    assert (asked.config.cluster.http_proxy, asked.config.cluster.no_proxy) == ("http://proxy:3128", "mirror")
    assert asked.config == load_config("4b-2nodes", json.loads(json.dumps(asked.overrides)))
    assert sorted(asked.told) == [
        "HTTP_PROXY=http://proxy:3128 → cluster.http_proxy",
        "MASTER_ADDR=10.0.0.1 → address of host train",
        "NO_PROXY=mirror → cluster.no_proxy",
        "PRM_GPUS=4 → NPUs of host prm",
        "PRM_NODE=10.0.0.2 → address of host prm",
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
    assert asked.config.judge_urls == ("http://10.9.9.9:30020",)
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
