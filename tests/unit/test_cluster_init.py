"""A cluster out of a file or out of the earlier names, and the Cluster block that keeps it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from blocks import ClusterBlock
from openclaw_core.cluster.init import cluster_from_environment, cluster_from_file
from openclaw_core.config import ConfigError, load_config
from openclaw_core.config.cluster import ClusterConfig
from openclaw_core.planning import make_plan

ROOT = Path(__file__).parents[2]
TWO = [
    {"name": "a", "roles": ["train", "rollout", "teacher"], "npus": 8, "address": "10.0.0.1", "user": "ops", "port": 2222},
    {"name": "b", "roles": ["prm"], "npus": 8, "address": "10.0.0.2", "work_root": "/disk/openclaw"},
]


def written(tmp_path: Path, content: Any) -> Path:
    file = tmp_path / "hosts.yaml"
    file.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
    return file


def test_a_file_needs_to_say_the_hosts_alone(tmp_path: Path) -> None:
    preset = load_config("4b-2nodes").cluster
    cluster = cluster_from_file(written(tmp_path, {"hosts": TWO}), "4b-2nodes")
    assert [(host.reached_at, host.port, host.user) for host in cluster.hosts] == [
        ("10.0.0.1", 2222, "ops"),
        ("10.0.0.2", 22, "root"),
    ]
    assert cluster.model_copy(update={"hosts": preset.hosts}) == preset


def test_parts_of_ssh_and_build_may_be_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ops")
    said = {"hosts": TWO, "ssh": {"key": "keys/id", "known_hosts": "~/known"}, "build": {"host": "b"}, "shm_size_mb": 1000}
    cluster = cluster_from_file(written(tmp_path, said), "4b-2nodes")
    assert (cluster.ssh.key, cluster.ssh.known_hosts) == (tmp_path / "keys/id", Path("/home/ops/known"))
    assert cluster.ssh.host_keys == "verify" and cluster.shm_size_mb == 1000
    assert cluster.build is not None and (cluster.build.host, cluster.build.dockerfile) == ("b", "Dockerfile")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("- a\n- b\n", "it must have `hosts:` with a list"),
        ("hosts: [", "cannot be read"),
        ({"host": TWO}, "it must have `hosts:` with a list"),
        ({"hosts": TWO, "imag": "x"}, "no parameter 'cluster.imag'; did you mean cluster.image"),
        ({"hosts": TWO, "ssh": {"password": "x"}}, "no parameter 'cluster.ssh.password'"),
        ({"hosts": [{**TWO[0], "roles": ["train"]}]}, "no host of cluster.hosts has the role rollout; give it to one"),
        ({"hosts": [TWO[0], {**TWO[1], "address": "10.0.0.1", "port": 2222}]}, "reached at 10.0.0.1:2222; each has its own"),
        ({"hosts": [{**TWO[0], "work_root": "data"}, TWO[1]]}, "data must be an absolute path"),
    ],
)
def test_a_file_that_says_what_cannot_be_is_refused(tmp_path: Path, content: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        cluster_from_file(written(tmp_path, content), "4b-2nodes")


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.yaml cannot be read"):
        cluster_from_file(tmp_path / "none.yaml", "4b-2nodes")


def test_the_earlier_names_make_a_cluster() -> None:
    said = {"MASTER_ADDR": "10.0.0.1", "PRM_NODE": "10.0.0.2", "WORK_ROOT": "/w", "PRM_GPUS": "4", "HTTPS_PROXY": "http://p:1"}
    cluster = cluster_from_environment(said, "4b-2nodes")
    assert [(host.name, host.address, host.npus, str(host.work_root)) for host in cluster.hosts] == [
        ("train", "10.0.0.1", 8, "/w"),
        ("prm", "10.0.0.2", 4, "/w"),
    ]
    assert cluster.https_proxy == "http://p:1"


@pytest.mark.parametrize(
    ("said", "preset", "message"),
    [
        ({}, "4b-2nodes", "nothing is said of the hosts: give --file, or set MASTER_ADDR"),
        ({"HTTP_PROXY": "http://p:1"}, "4b-2nodes", "nothing is said of the hosts"),
        ({"MASTER_ADDR": "10.0.0.1"}, "local-cpu", "preset local-cpu runs on this machine"),
        ({"PRM_NODE": "a b"}, "4b-2nodes", "PRM_NODE=a b: it must be a host's name or address"),
    ],
)
def test_an_environment_that_makes_no_cluster_is_refused(said: dict[str, str], preset: str, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        cluster_from_environment(said, preset)


@pytest.mark.parametrize("runbook", ["RUNBOOK.md", "RUNBOOK.zh-CN.md"])
def test_the_samples_of_the_runbook_are_clusters(tmp_path: Path, runbook: str) -> None:
    blocks = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs" / runbook).read_text(), re.DOTALL)
    samples = [block for block in blocks if "hosts:" in block]
    assert samples
    for sample in samples:
        cluster = cluster_from_file(written(tmp_path, sample), "4b-2nodes")
        assert ClusterBlock.of(cluster).overrides()["cluster.containers"]


@pytest.mark.parametrize("preset", ["4b-1node", "4b-2nodes", "32b-8nodes", "local-cpu"])
def test_a_block_stands_for_the_whole_cluster(preset: str) -> None:
    cluster = load_config(preset).cluster
    assert load_config("local-cpu", ClusterBlock.of(cluster).overrides()).cluster == cluster


def test_a_block_carries_every_field(tmp_path: Path) -> None:
    said = {
        "hosts": [{**TWO[0], "interface": "enp1", "docker_socket": "/run/d.sock"}, TWO[1]],
        "image": "registry:5000/mine@sha256:abc",
        "build": {"context": "/src", "host": "b", "args": {"A": "b"}, "network": "host", "deadline_s": 60},
        "ssh": {"key": "/k", "known_hosts": "/kh", "host_keys": "accept-new", "connect_timeout_s": 3, "command_timeout_s": 4},
        "mounts": [{"source": "/data/in", "target": "/in", "read_only": False}],
        "environment": {"A": "1"},
        "python": "/opt/python",
        "shm_size_mb": 2000,
        "http_proxy": "http://p:1",
        "https_proxy": "http://p:2",
        "no_proxy": "x",
        **{"start_deadline_s": 1.0, "ray_deadline_s": 2.0, "silence_s": 3.0, "liveness_s": 4.0, "ray_object_store_mb": 500},
        **{"ray_health_period_s": 6.0, "ray_health_timeout_s": 7.0, "ray_health_failures": 8},
    }
    cluster = cluster_from_file(written(tmp_path, said), "4b-2nodes")
    assert set(said) | {"containers"} == set(ClusterConfig.model_fields)
    assert load_config("local-cpu", ClusterBlock.of(cluster).overrides()).cluster == cluster


def test_the_judge_is_asked_where_its_host_is() -> None:
    block = ClusterBlock.of(ClusterConfig(containers=True, image="i", hosts=TWO))  # pyright: ignore[reportArgumentType]
    config = load_config("4b-2nodes", block.overrides())
    assert config.judge_urls == ("http://10.0.0.2:30020",)
    assert make_plan(config).fits
    one = [{**TWO[0], "roles": ["train", "rollout", "teacher", "prm"], "address": "fd00::2"}]
    assert load_config("4b-1node", {"cluster.hosts": one}).judge_urls == ("http://[fd00::2]:30020",)
    theirs = load_config("4b-2nodes", {**block.overrides(), "judge.base_urls": ["http://x:1"]})
    assert (theirs.judge_urls, theirs.judge_servers) == (("http://x:1",), False)
