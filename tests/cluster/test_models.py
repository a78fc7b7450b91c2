"""Models on hosts: downloaded once, converted once, copied to the others, and mended file by file."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path, PurePosixPath

import pytest

from openclaw_core.cluster.copies.code import built_wheel, push_code
from openclaw_core.cluster.copies.making import TOKEN_FILE
from openclaw_core.cluster.copies.manifests import manifest
from openclaw_core.cluster.copies.models import convert_on_hosts, download_on_hosts
from openclaw_core.cluster.copies.transfer import copy_tree
from openclaw_core.cluster.docker.containers import ContainerFailed, Engine
from openclaw_core.cluster.errors import ClusterError
from openclaw_core.cluster.hosts import Host, Hosts
from openclaw_core.cluster.run_on_hosts import push_run
from openclaw_core.cluster.simulation import Simulation
from openclaw_core.cluster.simulation.mounts import simulated_mounts, simulated_python
from openclaw_core.cluster.specs import MODELS, command_spec, host_path, run_path
from openclaw_core.config.cluster import ClusterConfig
from openclaw_core.config.load import load_config
from openclaw_core.config.schema import ModelConfig, RunConfig
from openclaw_core.rundir import create_run
from openclaw_core.trainer.retention import META
from openclaw_core.weights.hub_client import HubAccess
from openclaw_core.weights.sources import MARKER, fetch_model
from tests.hub_server import Hub

pytestmark = pytest.mark.cluster

RUN = "models-test"
REPOSITORY, COMMIT = "org/tiny", "c" * 40
TOKEN = "hf_secretsecretsecret"
TORCH_DIST = "torch_dist-bf16"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    from tests.models import tiny_llama

    directory = tiny_llama(tmp_path_factory.mktemp("models") / "tiny")
    return {path.name: path.read_bytes() for path in directory.iterdir()}


@pytest.fixture(scope="module")
def downloaded(files: dict[str, bytes], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As download-model leaves it on a host."""
    hub, place = Hub(REPOSITORY, {COMMIT: files}, {"main": COMMIT}), tmp_path_factory.mktemp("downloaded") / "hf"
    with hub.serving() as url:
        fetch_model(f"hf://{REPOSITORY}", place, print, hub=lambda: HubAccess((url,)))
    return place


def seed(downloaded: Path, *hosts: Host) -> None:
    for host in hosts:
        copy_tree(None, PurePosixPath(downloaded), host, on(host))


@pytest.fixture
def hub(files: dict[str, bytes]) -> Hub:
    return Hub(REPOSITORY, {COMMIT: files}, {"main": COMMIT})


@pytest.fixture
def hub_url(hub: Hub, two_hosts: Simulation) -> Iterator[str]:
    """On the address that this machine has among the hosts."""
    with hub.serving(str(two_hosts.state.gateway)) as url:
        yield url


@pytest.fixture(scope="module")
def code(cluster_config: ClusterConfig) -> str:
    with Hosts(cluster_config) as hosts, built_wheel() as wheel:
        return push_code(hosts, wheel, print)


@pytest.fixture
def cluster(cluster_config: ClusterConfig, hub_url: str, sim_image: str) -> ClusterConfig:
    """node-a trains, node-b scores and judges."""
    first, second = cluster_config.hosts
    return cluster_config.model_copy(
        update={
            "image": sim_image,
            "hosts": (first, second.model_copy(update={"roles": ("teacher", "prm")})),
            "mounts": simulated_mounts(),
            "python": simulated_python(),
            "environment": {"HF_ENDPOINT": hub_url, "OMP_NUM_THREADS": "1", "HOME": "/root"},
            "shm_size_mb": 64,
        }
    )


@pytest.fixture
def run_hosts(cluster: ClusterConfig) -> Iterator[Hosts]:
    with Hosts(cluster) as hosts:
        yield hosts
        for host in hosts:
            host.run("rm", "-rf", str(host_path(host.config, MODELS)), str(host_path(host.config, run_path(RUN))))
            with Engine(host) as engine:
                assert engine.of_run(RUN) == []


@pytest.fixture
def config(cluster: ClusterConfig) -> RunConfig:
    model = ModelConfig(name="tiny", source=f"hf://{REPOSITORY}", context_length=1024)
    return load_config("2nodes-sim", {}).model_copy(update={"model": model, "cluster": cluster})


@pytest.fixture
def pushed(config: RunConfig, run_hosts: Hosts, tmp_path: Path) -> RunConfig:
    """The configuration, which the hosts have too."""
    push(config, run_hosts, tmp_path / "runs")
    return config


def push(config: RunConfig, hosts: Hosts, runs: Path) -> None:
    paths = config.paths.model_copy(update={"runs": runs})
    push_run(config, create_run(config.model_copy(update={"paths": paths}), RUN), hosts)


def on(host: Host, form: str = "hf") -> PurePosixPath:
    return host_path(host.config, MODELS / "tiny" / form)


def digests(host: Host, form: str = "hf") -> dict[str, str]:
    return {name: record.sha256 for name, record in manifest(host, on(host, form)).items()}


def sha256(files: dict[str, bytes]) -> dict[str, str]:
    return {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}


def test_a_simulated_container_has_this_machines_packages_and_the_hosts_own_code(
    config: RunConfig, run_hosts: Hosts, code: str
) -> None:
    host = run_hosts.head
    program = "import ray, torch, megatron.core, transformers, openclaw_core; print(openclaw_core.__file__)"
    spec = command_spec(config, RUN, host.config, "imports", (), code)
    lines: list[str] = []
    with Engine(host) as engine:
        engine.run_once(replace(spec, command=(simulated_python(), "-c", program)), lines.append, deadline_s=120)
    assert lines[-1] == f"/openclaw/code/{code}/openclaw_core/__init__.py"


def test_a_model_is_downloaded_and_converted_once_and_then_taken_as_it_is(
    pushed: RunConfig, run_hosts: Hosts, code: str, hub: Hub, files: dict[str, bytes]
) -> None:
    first, second = run_hosts.all
    hub.needs_token = TOKEN
    lines: list[str] = []
    downloaded = download_on_hosts(pushed, RUN, run_hosts, code, lines.append, token=TOKEN)
    converted = convert_on_hosts(pushed, RUN, run_hosts, code, lines.append)

    where = "on node-a; copied from node-a to node-b; whole on node-a, node-b"
    assert downloaded == (False, f"hf://org/tiny: downloaded {where}")
    assert converted == (False, f"bf16 weights: converted {where}")
    assert hub.sent["model.safetensors"] == len(files["model.safetensors"])
    assert sha256(files).items() <= digests(first).items()
    assert json.loads(second.read(on(second) / MARKER))["commit"] == COMMIT
    for form, marker in (("hf", MARKER), (TORCH_DIST, META)):
        assert marker in digests(first, form)
        assert digests(first, form) == digests(second, form)
    # The token went by a file, which is gone.
    assert TOKEN not in "\n".join(lines)
    assert TOKEN_FILE not in first.run("ls", str(host_path(first.config, run_path(RUN)))).stdout.split()

    requests, said = len(hub.asked), []
    again = (
        download_on_hosts(pushed, RUN, run_hosts, code, said.append),
        convert_on_hosts(pushed, RUN, run_hosts, code, said.append),
    )
    assert again == (
        (True, "hf://org/tiny: there already; whole on node-a, node-b"),
        (True, "bf16 weights: there already; whole on node-a, node-b"),
    )
    assert (len(hub.asked), said) == (requests, [])


def test_a_download_that_fails_says_why_and_leaves_neither_model_nor_token(
    pushed: RunConfig, run_hosts: Hosts, code: str, hub: Hub
) -> None:
    hub.needs_token = TOKEN
    lines: list[str] = []
    with pytest.raises(ContainerFailed, match=r"(?s)node-a.*org/tiny is gated.*accept its conditions at") as caught:
        download_on_hosts(pushed, RUN, run_hosts, code, lines.append, token=f"{TOKEN}x")

    assert TOKEN not in "\n".join([str(caught.value), *lines])
    head = run_hosts.head
    assert TOKEN_FILE not in head.run("ls", str(host_path(head.config, run_path(RUN)))).stdout.split()
    assert all(host.run("test", "-e", str(on(host)), check=False).code for host in run_hosts)


def test_a_damaged_host_is_mended_by_the_files_that_differ_and_nothing_is_downloaded(
    config: RunConfig, run_hosts: Hosts, downloaded: Path, hub: Hub, files: dict[str, bytes]
) -> None:
    first, second = run_hosts.all
    seed(downloaded, first, second)
    second.run("truncate", "-s", "1000", str(on(second) / "model.safetensors"))
    second.run("touch", str(on(second) / "model.safetensors.index.json"))  # of no whole model: it would be believed
    lines: list[str] = []
    done = download_on_hosts(config, RUN, run_hosts, "unused", lines.append)

    assert done == (False, "hf://org/tiny: copied from node-a to node-b; whole on node-a, node-b")
    assert lines[-1].startswith(f"node-b: {len(files) + 1} files, {len(files)} of them were there")
    assert digests(first) == digests(second)

    # The other way round: the host that would download is the one that lacks it.
    first.run("rm", str(on(first) / MARKER))
    done = download_on_hosts(config, RUN, run_hosts, "unused", print)
    assert done == (False, "hf://org/tiny: copied from node-b to node-a; whole on node-a, node-b")
    assert digests(first) == digests(second)
    assert not hub.asked


def test_hosts_with_two_states_of_a_branch_get_the_same_one(config: RunConfig, run_hosts: Hosts, downloaded: Path) -> None:
    first, second = run_hosts.all
    seed(downloaded, first, second)
    marker = json.loads(second.read(on(second) / MARKER))
    other = b'{"model_type": "llama", "later": true}'
    marker["commit"], marker["files"]["config.json"] = (
        "d" * 40,
        {"bytes": len(other), "sha256": hashlib.sha256(other).hexdigest()},
    )
    second.write(on(second) / "config.json", other, mode=0o644)
    second.write(on(second) / MARKER, json.dumps(marker).encode(), mode=0o644)
    done = download_on_hosts(config, RUN, run_hosts, "unused", print)

    assert done == (False, "hf://org/tiny: copied from node-a to node-b; whole on node-a, node-b")
    assert digests(first) == digests(second)
    assert json.loads(second.read(on(second) / MARKER))["commit"] == COMMIT


def test_a_copy_goes_on_from_what_an_earlier_one_left(
    config: RunConfig, run_hosts: Hosts, downloaded: Path, files: dict[str, bytes]
) -> None:
    first, second = run_hosts.all
    seed(downloaded, first)
    left = on(second).with_name(".hf.copy")
    half = len(files["model.safetensors"]) // 2
    mode = (downloaded / "tokenizer.json").stat().st_mode & 0o777
    second.write(left / "tokenizer.json", files["tokenizer.json"], mode=mode)
    second.write(left / "model.safetensors.part", files["model.safetensors"][:half])
    second.write(left / "of-another-model.safetensors", b"x")
    lines: list[str] = []
    download_on_hosts(config, RUN, run_hosts, "unused", lines.append)

    assert digests(first) == digests(second)
    assert "files, 1 of them were there" in lines[-1]
    assert second.run("ls", "-A", str(left.parent)).stdout.split() == ["hf"]


def test_a_directory_of_the_first_host_is_linked_to_there_and_copied_to_the_others(
    config: RunConfig, run_hosts: Hosts, code: str, files: dict[str, bytes], tmp_path: Path
) -> None:
    first, second = run_hosts.all
    mine = host_path(first.config, MODELS / "mine")
    for name, content in files.items():
        first.write(mine / name, content, mode=0o644)
    model = config.model.model_copy(update={"source": f"file://{MODELS}/mine"})
    config = config.model_copy(update={"model": model})
    push(config, run_hosts, tmp_path / "runs")

    done = download_on_hosts(config, RUN, run_hosts, code, print)
    assert done == (False, f"file://{MODELS}/mine: {mine} on node-a, copied to node-b")
    assert first.run("readlink", str(on(first))).stdout.strip() == f"{MODELS}/mine"
    assert digests(second) == sha256(files)

    # Weights that were made of these very files are found, though the link leads nowhere outside the containers.
    made_of = {
        name: {"bytes": len(files[name]), "sha256": sha256(files)[name]} for name in ("config.json", "model.safetensors")
    }
    meta = {"dtype": "bf16", "meta": {"hf": made_of}, "parts": {}}
    first.write(on(first, TORCH_DIST) / META, json.dumps(meta).encode(), mode=0o644)
    converted = convert_on_hosts(config, RUN, run_hosts, "unused", print)
    assert converted == (False, "bf16 weights: copied from node-a to node-b; whole on node-a, node-b")


def test_a_directory_that_containers_do_not_see_is_named(config: RunConfig, run_hosts: Hosts) -> None:
    model = config.model.model_copy(update={"source": "file:///data/model"})
    with pytest.raises(ClusterError, match=r"file:///data/model is not in the containers of host node-a; put it below"):
        download_on_hosts(config.model_copy(update={"model": model}), RUN, run_hosts, "unused", print)
