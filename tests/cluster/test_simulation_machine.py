"""Simulated hosts and this machine: a free subnet, what is lacking, the command line."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from openclaw_core.cluster.errors import ClusterError
from openclaw_core.cluster.simulation import Simulation, check_simulation, lacks
from openclaw_core.cluster.simulation import checks as simulation_checks
from openclaw_core.cluster.simulation.network import CANDIDATES, call, free_subnet
from openclaw_core.cluster.simulation.state import SimulationState, read_state
from openclaw_core.config.cluster import ClusterConfig
from openclaw_core.config.load import parse_assignment
from tests.cluster.leftovers import leftovers
from tests.cluster.parts import broken_engine, invoke

pytestmark = pytest.mark.cluster


# The subnet


def test_a_subnet_that_a_route_of_any_table_names_is_not_taken():
    subnet = free_subnet()
    call("ip", "route", "add", "unreachable", str(subnet), "table", "7919")
    try:
        assert not free_subnet().overlaps(subnet)
    finally:
        call("ip", "route", "flush", "table", "7919")


def test_a_subnet_that_hides_a_proxy_is_not_taken(monkeypatch: pytest.MonkeyPatch):
    subnet = free_subnet()
    monkeypatch.setenv("HTTPS_PROXY", f"http://{subnet[9]}:3128")
    assert not free_subnet().overlaps(subnet)


def test_when_every_subnet_is_in_use_it_is_said(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("https_proxy", " ".join(str(subnet[1]) for subnet in CANDIDATES))
    with pytest.raises(ClusterError, match=r"every network from 10\.199\.77\.0/24 to 10\.199\.254\.0/24 is in use"):
        free_subnet()


# What a machine lacks


def test_a_fit_machine_lacks_nothing(two_hosts: Simulation):
    rows = check_simulation()
    assert [str(row) for row in rows if not row.ok] == []
    assert {"root on Linux", "programs", "namespaces", "ssh server", "docker engine", "containers"} <= {
        row.check for row in rows
    }


def test_missing_programs_are_named_with_their_packages(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("PATH", str(tmp_path))
    found = {row.check: row for row in lacks()}
    assert found["program dockerd"].advice == "apt-get install --no-install-recommends docker.io"
    assert found["program ip"].advice == "apt-get install --no-install-recommends iproute2"
    assert "namespaces" not in found  # nothing is tried without the programs


def test_an_engine_that_does_not_start_is_a_row_with_its_words_and_nothing_stays(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    broken_engine(monkeypatch, tmp_path)
    made: list[SimulationState] = []
    actual = simulation_checks.take_down
    monkeypatch.setattr(simulation_checks, "take_down", lambda state: (made.append(state), actual(state)))
    (row,) = lacks()
    assert row.check == "docker engine"
    assert "no graph driver today" in row.value
    assert "--privileged" in row.advice
    assert leftovers(made[0]) == []


# The command line


def test_the_command_line_makes_shows_and_removes_hosts(short: Path):
    made = invoke("sim", "up", str(short), "--names", "one,two")
    assert made.exit_code == 0, made.output
    state = read_state(short)
    assert f"ssh -F {short}/ssh_config two" in made.output
    assert call("ssh", "-F", f"{short}/ssh_config", "two", "echo $NODE_NAME").strip() == "two"
    assert f"docker -H unix://{short}/two/docker.sock ps" in made.output

    shown = invoke("sim", "status", str(short))
    assert shown.exit_code == 0
    assert shown.output.splitlines()[0] == f"one  {state.hosts[0].address}  network up, ssh up, engine up, 0 containers run"
    Simulation.load(short).cut("two")
    shown = invoke("sim", "status", str(short))
    assert shown.exit_code == 1
    assert "network cut" in shown.output.splitlines()[1]

    gone = invoke("sim", "down", str(short))
    assert (gone.exit_code, leftovers(state)) == (0, [])


def test_the_printed_parameters_are_those_of_a_run(short: Path):
    made = invoke("sim", "up", str(short), "--names", "one")
    lines = [line.strip() for line in made.output.splitlines() if line.startswith("  --set ")]
    words = [word for line in lines for word in shlex.split(line) if word != "--set"]
    values = dict(parse_assignment(word) for word in words)
    simulation = Simulation.load(short)
    assert ClusterConfig.model_validate({"hosts": values["cluster.hosts"]}).hosts == simulation.hosts
    assert {values["cluster.ssh.key"], values["cluster.ssh.known_hosts"]} == {
        str(simulation.ssh.key),
        str(simulation.ssh.known_hosts),
    }
    simulation.down()


def test_no_simulation_in_a_directory_is_an_error(tmp_path: Path):
    for name in ("down", "status"):
        done = invoke("sim", name, str(tmp_path))
        assert isinstance(done.exception, ClusterError)
        assert f"no simulation in {tmp_path}" in str(done.exception)
