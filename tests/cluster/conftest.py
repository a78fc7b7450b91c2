"""Two simulated hosts, each with a real SSH server and a real Docker engine, for all tests of this package."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import docker
import pytest

from openclaw_core.cluster.docker.containers import Engine
from openclaw_core.cluster.errors import ClusterError
from openclaw_core.cluster.hosts import Hosts
from openclaw_core.cluster.simulation import Simulation, lacks
from openclaw_core.cluster.simulation.image import SIM_IMAGE, sim_build_context
from openclaw_core.cluster.simulation.network import call
from openclaw_core.config.cluster import ClusterConfig
from tests.cluster.parts import engine

REQUIRED = "OPENCLAW_REQUIRE_SIM"
"""Set to 1, a machine that cannot simulate hosts is a failure: else these tests could be skipped for ever unnoticed."""


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "cluster: needs simulated hosts (root, sshd, dockerd); see openclaw-rl doctor --sim")


@pytest.fixture(scope="session")
def can_simulate() -> None:
    """Whoever needs simulated hosts is skipped where this machine cannot have them, or fails."""
    if missing := lacks():
        message = "this machine cannot simulate hosts:\n" + "\n".join(map(str, missing))
        pytest.fail(message, pytrace=False) if os.environ.get(REQUIRED) == "1" else pytest.skip(message)


@pytest.fixture(scope="session")
def two_hosts(can_simulate: None) -> Iterator[Simulation]:
    """node-a (train, rollout) and node-b (prm). The session shares them: whoever cuts or ends something puts it back."""
    # Short: sockets are below it.
    with Simulation.up(Path(tempfile.mkdtemp(prefix="oc-", dir="/tmp"))) as simulation:
        yield simulation


@pytest.fixture(scope="session")
def cluster_config(two_hosts: Simulation) -> ClusterConfig:
    """Of a run on them."""
    return ClusterConfig(containers=True, image=SIM_IMAGE, hosts=two_hosts.hosts, ssh=two_hosts.ssh)


@pytest.fixture
def hosts(cluster_config: ClusterConfig) -> Iterator[Hosts]:
    """Connections to them, new for each test."""
    with Hosts(cluster_config) as connected:
        yield connected


@pytest.fixture(scope="session")
def sim_image(cluster_config: ClusterConfig, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The image, built on the first host; its name and tag."""
    context = sim_build_context(tmp_path_factory.mktemp("image") / "sim")
    with Hosts(cluster_config) as connected:
        head = connected.all[0]
        with head.socket(head.config.docker_socket) as socket:
            client = docker.DockerClient(base_url=f"unix://{socket}")
            client.images.build(path=str(context), tag=SIM_IMAGE, rm=True, forcerm=True, network_mode="none")
            client.close()
    return SIM_IMAGE


@pytest.fixture(scope="module")
def image_on_both(cluster_config: ClusterConfig, sim_image: str) -> str:
    """The image, with the same id on both hosts."""
    with Hosts(cluster_config) as connected, Engine(connected.all[0]) as first, Engine(connected.all[1]) as second:
        if first.image_id(sim_image) != second.image_id(sim_image):
            saved = first.client.images.get(sim_image).save(named=sim_image)
            second.client.images.load(b"".join(saved))
    return sim_image


@pytest.fixture
def short() -> Iterator[Path]:
    """A short path below which a simulation can be made; what is left there at the end is taken down."""
    directory = Path(tempfile.mkdtemp(prefix="oc-", dir="/tmp"))
    yield directory / "s"
    with contextlib.suppress(ClusterError):  # there is none any more
        Simulation.load(directory / "s").down()
    call("rm", "-rf", "--one-file-system", str(directory))


@pytest.fixture(scope="session")
def sim_archive(cluster_config: ClusterConfig, sim_image: str) -> bytes:
    """The image, for the engines of other simulations."""
    with Hosts(cluster_config) as connected, engine(connected.head) as client:
        return b"".join(client.images.get(sim_image).save(named=True))
