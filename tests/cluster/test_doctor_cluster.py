"""`openclaw-rl doctor --cluster NAME` for real: a Cluster block on a Prefect server, and two simulated hosts that it names."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from prefect.settings import PREFECT_API_URL
from prefect.testing.utilities import prefect_test_harness

from openclaw_core.cluster.simulation.mounts import simulated_mounts, simulated_python
from openclaw_core.config.cluster import ClusterConfig

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

CHECKS = ("ssh", "clock", "docker", "image", "work_root", "disk", "memory", "interface", "other hosts")
OF_THE_HEAD = ("ports", "model", "megatron.core")


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """The URL of a Prefect server of this module's own."""
    with prefect_test_harness(server_startup_timeout=120):
        yield str(PREFECT_API_URL.value())


@dataclass(frozen=True)
class Row:
    """Of the table that was shown; cells that went over several lines are one text."""

    host: str
    check: str
    ok: str
    found: str
    advice: str


def shown(text: str) -> list[Row]:
    rows: list[list[str]] = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("│").split("│")]
        if not line.startswith("│") or len(cells) != 5:
            continue
        if cells[1]:
            host = cells[0] or rows[-1][0]
            rows.append([host, *cells[1:]])
        else:
            rows[-1] = [f"{before} {more}".strip() for before, more in zip(rows[-1], cells, strict=True)]
    return [Row(*cells) for cells in rows]


def cli(server: str, *words: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "openclaw_core.cli", *words]
    environment = {**os.environ, "PREFECT_API_URL": server}
    return subprocess.run(line, env=environment, capture_output=True, text=True, timeout=180, check=False)


def doctor(server: str, name: str) -> tuple[int, list[Row], str]:
    done = cli(server, "doctor", "--cluster", name, "--preset", "2nodes-sim")
    return done.returncode, shown(done.stdout), done.stdout


def keep(server: str, file: Path, name: str, config: ClusterConfig, image: str, **of_the_second: Any) -> None:
    """A Cluster block of the two hosts, made as an operator makes it."""
    first, second = (host.model_dump(mode="json") for host in config.hosts)
    said = {
        "hosts": [first, second | of_the_second],
        "ssh": config.ssh.model_dump(mode="json", exclude_none=True),
        "image": image,
        "mounts": [mount.model_dump(mode="json") for mount in simulated_mounts()],
        "python": simulated_python(),
        "ray_object_store_mb": 100,
    }
    file.write_text(yaml.safe_dump(said))
    done = cli(server, "cluster", "init", name, "--preset", "2nodes-sim", "--file", str(file))
    assert done.returncode == 0, done.stdout + done.stderr


def red(rows: Sequence[Row]) -> list[tuple[str, str]]:
    return [(row.host, row.check) for row in rows if row.ok == "NO"]


def test_hosts_that_are_fit_are_a_table_host_by_host_and_check_by_check(
    server: str, cluster_config: ClusterConfig, image_on_both: str, tmp_path: Path
) -> None:
    keep(server, tmp_path / "hosts.yaml", "fit", cluster_config, image_on_both)
    code, rows, output = doctor(server, "fit")
    assert (code, red(rows)) == (0, []), output
    assert [row.host for row in rows] == sorted(row.host for row in rows)
    assert {row.check for row in rows if row.host == "node-a"} >= {*CHECKS, *OF_THE_HEAD}
    assert {row.check for row in rows if row.host == "node-b"} >= {*CHECKS}
    assert {row.ok for row in rows} == {"yes"}
    # This machine comes first, a line for each check, and nothing else is on standard output.
    before, _, after = output.partition("┏")
    lines = before.splitlines()
    assert {"python", "packages", "people", "ssh"} <= {line.partition(": ")[0] for line in lines}
    assert "[info" not in output and "level=info" not in output and all(line[0] in "┃┡│├└" for line in after.splitlines()[1:])


def test_a_host_whose_port_is_wrong_is_one_red_row_that_says_what_to_do(
    server: str, cluster_config: ClusterConfig, image_on_both: str, tmp_path: Path
) -> None:
    keep(server, tmp_path / "hosts.yaml", "wrong-port", cluster_config, image_on_both, port=2299)
    code, rows, output = doctor(server, "wrong-port")
    # The other host cannot reach it there either.
    assert (code, red(rows)) == (1, [("node-a", "other hosts"), ("node-b", "ssh")]), output
    (lost,) = [row for row in rows if row.host == "node-b"]
    address = cluster_config.hosts[1].reached_at
    assert "port 2299 cannot be reached" in lost.found and "Connection refused" in lost.found
    assert lost.advice == f"ssh -p 2299 root@{address} must work from this machine without a question"


def test_an_engine_that_is_not_where_it_is_said_to_be_is_one_red_row(
    server: str, cluster_config: ClusterConfig, image_on_both: str, tmp_path: Path
) -> None:
    keep(server, tmp_path / "hosts.yaml", "no-engine", cluster_config, image_on_both, docker_socket="/nowhere/docker.sock")
    code, rows, output = doctor(server, "no-engine")
    assert (code, red(rows)) == (1, [("node-b", "docker")]), output
    (row,) = [row for row in rows if row.ok == "NO"]
    assert "no answer at /nowhere/docker.sock" in row.found and "systemctl start docker" in row.advice


def test_a_block_that_there_is_not_is_told(server: str) -> None:
    done = cli(server, "doctor", "--cluster", "none-such", "--preset", "2nodes-sim")
    assert done.returncode == 2 and "no openclaw-cluster block 'none-such'" in done.stderr
    assert "Traceback" not in done.stderr
