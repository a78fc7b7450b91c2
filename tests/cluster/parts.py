"""What tests on simulated hosts share."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import docker
import pytest
import structlog
from click.testing import Result
from docker.models.containers import Container
from typer.testing import CliRunner

from openclaw_core.cli_cluster import app
from openclaw_core.cluster.hosts import Host
from openclaw_core.cluster.simulation import Simulation
from openclaw_core.config.cluster import ClusterConfig


@contextlib.contextmanager
def cut(simulation: Simulation, name: str) -> Iterator[None]:
    simulation.cut(name)
    try:
        yield
    finally:
        simulation.mend(name)


@contextlib.contextmanager
def engine(host: Host) -> Iterator[docker.DockerClient]:
    with (
        host.socket(host.config.docker_socket) as socket,
        contextlib.closing(docker.DockerClient(base_url=f"unix://{socket}")) as client,
    ):
        yield client


def ping(socket: Path) -> bool:
    with contextlib.closing(docker.DockerClient(base_url=f"unix://{socket}")) as client:
        return client.ping()


def run_forever(client: docker.DockerClient, image: str, **options: object) -> Container:
    return client.containers.run(image, ["sleep", "100000"], detach=True, init=True, **({"network_mode": "host"} | options))  # type: ignore[call-overload]


def reaches(source: Host, address: str, within_s: int = 30) -> bool:
    """Whether an SSH server greets there."""
    greeting = f"head -c 4 < /dev/tcp/{address}/22"
    return source.run("timeout", str(within_s), "bash", "-c", greeting, check=False).stdout == "SSH-"


def cluster_of(simulation: Simulation) -> ClusterConfig:
    return ClusterConfig(containers=True, image="openclaw-sim:1", hosts=simulation.hosts, ssh=simulation.ssh)


def broken_engine(monkeypatch: pytest.MonkeyPatch, directory: Path) -> None:
    """The next engine that is started ends at once."""
    program = directory / "bin" / "dockerd"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho no graph driver today\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=":")


def invoke(*words: str) -> Result:
    """The command line in this process. Its log goes where the runner's output went, which is closed by then."""
    result = CliRunner().invoke(app, words)
    structlog.reset_defaults()
    return result


def until(condition: Callable[[], bool], deadline_s: float = 60) -> None:
    end = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.1)
