"""Containers on real engines over SSH."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from openclaw_core.cluster.docker.containers import ContainerFailed, Engine, EngineError, Found
from openclaw_core.cluster.docker.terms import SPEC_LABEL, spec_digest
from openclaw_core.cluster.hosts import HostError, Hosts
from openclaw_core.cluster.simulation import Simulation
from openclaw_core.cluster.specs import ContainerSpec, Mount, labels

pytestmark = pytest.mark.cluster

RUN = "test-containers"


@pytest.fixture
def engine(hosts: Hosts, sim_image: str) -> Iterator[Engine]:
    """node-a's; nothing of ours is left after the test."""
    with Engine(hosts.all[0]) as engine:
        yield engine
    with Engine(hosts.all[0]) as again:
        again.remove([found.name for run in (RUN, "other") for found in again.of_run(run)], grace_s=0)


def spec(hosts: Hosts, script: str, **changes: Any) -> ContainerSpec:
    """A container that runs a line of shell."""
    host = hosts.all[0].config
    made = ContainerSpec(
        host=host.name,
        name=f"openclaw-{RUN}-x",
        role="worker",
        image=hosts.cluster.image or "",
        command=("sh", "-c", script),
        labels=labels(RUN, host, "worker"),
    )
    return replace(made, **changes)


def test_a_container_is_made_as_its_spec_says(engine: Engine, hosts: Hosts):
    work = str(hosts.all[0].work_root)
    wanted = spec(
        hosts,
        'echo "$A $(hostname)"; touch /w/made && echo writable; touch /r/x 2>/dev/null || echo read-only; '
        "df -m /dev/shm | tail -1; ls -l /dev/zero; cat /proc/1/comm; ip -4 addr; sleep 60",
        environment={"A": "b c"},
        mounts=(
            Mount(work, "/w", read_only=False),
            Mount(work, "/r"),
            Mount("/nothing/here", "/n", optional=True),
        ),
        devices=("/dev/zero",),
        shm_size_mb=77,
        restarts=5,
        hostname="here",
    )
    assert engine.start(wanted) is False
    attributes = engine.client.containers.get(wanted.name).attrs
    assert attributes["HostConfig"]["RestartPolicy"] == {"Name": "on-failure", "MaximumRetryCount": 5}
    assert attributes["HostConfig"]["NetworkMode"] == "host"
    assert attributes["HostConfig"]["IpcMode"] == "private"
    assert attributes["Config"]["Labels"].items() >= {**wanted.labels, SPEC_LABEL: spec_digest(wanted)}.items()
    assert {mount["Destination"] for mount in attributes["Mounts"]} == {"/w", "/r"}
    deadline = time.monotonic() + 20
    while hosts.all[0].config.reached_at not in (said := engine.logs(wanted.name)):
        assert time.monotonic() < deadline, said
        time.sleep(0.2)
    lines = said.splitlines()
    assert lines[:3] == ["b c here", "writable", "read-only"]
    assert lines[3].split()[1] == "77"
    assert "/dev/zero" in said
    assert "docker-init" in said


def test_a_running_container_of_the_same_spec_is_left_alone(engine: Engine, hosts: Hosts):
    wanted = spec(hosts, "sleep 60")
    assert engine.start(wanted) is False
    first = engine.client.containers.get(wanted.name).id
    assert engine.start(wanted) is True
    assert engine.client.containers.get(wanted.name).id == first


def test_a_running_container_of_another_spec_is_an_error(engine: Engine, hosts: Hosts):
    engine.start(spec(hosts, "sleep 60"))
    with pytest.raises(EngineError, match=rf"container openclaw-{RUN}-x runs already with another spec; .*\({RUN}\)"):
        engine.start(spec(hosts, "sleep 61"))


def test_a_dead_container_is_made_anew(engine: Engine, hosts: Hosts):
    wanted = spec(hosts, "sleep 60")
    engine.start(wanted)
    first = engine.client.containers.get(wanted.name)
    first.kill()
    first.wait()
    assert engine.of_run(RUN) == [Found(wanted.name, "worker", RUN, "exited", 137, "")]
    assert engine.start(wanted) is False
    assert engine.client.containers.get(wanted.name).id != first.id
    assert engine.of_run(RUN) == [Found(wanted.name, "worker", RUN, "running", None, "")]


def test_what_the_host_lacks_is_named_and_nothing_is_made(engine: Engine, hosts: Hosts):
    wanted = spec(hosts, "true", devices=("/dev/davinci0",), mounts=(Mount("/data/none", "/n"),))
    with pytest.raises(EngineError, match="needs mount /data/none, device /dev/davinci0, which the host does not have"):
        engine.start(wanted)
    with pytest.raises(EngineError, match=r"there is no image nowhere:1; .*distribute-image"):
        engine.start(spec(hosts, "true", image="nowhere:1"))
    with pytest.raises(EngineError, match=rf"container openclaw-{RUN}-x cannot be started: .*/etc/passwd"):
        engine.start(spec(hosts, "", devices=("/etc/passwd",)))
    assert engine.of_run(RUN) == []


def test_runs_are_told_apart_by_label(engine: Engine, hosts: Hosts):
    host = hosts.all[0].config
    engine.start(spec(hosts, "sleep 60"))
    engine.start(spec(hosts, "sleep 60", name="openclaw-other-x", labels=labels("other", host, "head")))
    assert [found.name for found in engine.of_run(RUN)] == [f"openclaw-{RUN}-x"]
    assert engine.foreign(RUN) == [Found("openclaw-other-x", "head", "other", "running", None, "")]
    assert [found.run for found in engine.foreign("third")] == ["other", RUN]
    engine.remove([f"openclaw-{RUN}-x", "never-there"], grace_s=1)
    assert engine.of_run(RUN) == []


def test_a_container_that_obeys_ends_before_its_grace(engine: Engine, hosts: Hosts):
    engine.start(spec(hosts, "sleep 60"))
    started = time.monotonic()
    engine.remove([f"openclaw-{RUN}-x"], grace_s=30)
    assert time.monotonic() - started < 20


def test_run_once_tells_lines_as_they_come_and_leaves_nothing(engine: Engine, hosts: Hosts):
    told: list[tuple[str, float]] = []
    engine.run_once(
        spec(hosts, "echo one; echo two >&2; sleep 2; printf three"), lambda line: told.append((line, time.monotonic())), 60
    )
    assert sorted(line for line, _ in told) == ["one", "three", "two"]
    assert told[2][1] - told[0][1] > 1
    assert engine.of_run(RUN) == []


def test_run_once_says_how_a_container_failed(engine: Engine, hosts: Hosts):
    with pytest.raises(
        ContainerFailed, match=r"host node-a: container .* ended with status 3; its last lines:\n(?s:.*)bad"
    ) as error:
        engine.run_once(spec(hosts, "for i in $(seq 40); do echo line $i; done; echo bad; exit 3"), lambda _: None, 60)
    assert (error.value.status, len(error.value.lines), error.value.lines[-1]) == (3, 30, "bad")
    assert engine.of_run(RUN) == []


def test_run_once_ends_at_its_deadline(engine: Engine, hosts: Hosts):
    started = time.monotonic()
    with pytest.raises(ContainerFailed, match=r"did not end within 12 s; its last lines:\nat work") as error:
        engine.run_once(spec(hosts, "echo at work; sleep 600"), lambda _: None, 12)
    assert error.value.status is None
    assert time.monotonic() - started < 40
    assert engine.of_run(RUN) == []


def test_run_once_leaves_nothing_when_it_is_interrupted(engine: Engine, hosts: Hosts):
    def interrupt(_line: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        engine.run_once(spec(hosts, "echo one; sleep 600"), interrupt, 60)
    assert engine.of_run(RUN) == []


def test_run_once_follows_one_that_was_left_behind(engine: Engine, hosts: Hosts):
    wanted = spec(hosts, "echo one; sleep 3; echo two")
    engine.start(wanted)
    first = engine.client.containers.get(wanted.name).id
    told: list[str] = []
    engine.run_once(wanted, told.append, 60)
    assert told == ["one", "two"]
    with pytest.raises(HostError):
        engine.logs(str(first))


def test_run_once_goes_on_after_a_cut_of_the_network(two_hosts: Simulation, hosts: Hosts, engine: Engine):
    told: list[str] = []
    mending = threading.Timer(25, two_hosts.mend, ["node-a"])

    def cut_at_five(line: str) -> None:
        told.append(line)
        if line == "5":
            two_hosts.cut("node-a")
            mending.start()

    try:
        engine.run_once(spec(hosts, "for i in $(seq 40); do echo $i; sleep 1; done"), cut_at_five, 120)
    finally:
        mending.cancel()
        two_hosts.mend("node-a")
    assert told == [str(number) for number in range(1, 41)]
