"""env-check and orphans against real SSH servers, Docker engines, namespaces and processes. Only npu-smi is a stand-in.

Clock, disk and pids are one for all simulated hosts: what is said where they differ is tested in tests/unit.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from openclaw_core.cluster.copies.code import code_path, push_code
from openclaw_core.cluster.docker.containers import Engine
from openclaw_core.cluster.host_checks import HostCheck, check_hosts
from openclaw_core.cluster.hosts import Host, Hosts
from openclaw_core.cluster.orphans import end_orphans, find_holders, look_at, record
from openclaw_core.cluster.simulation import Simulation
from openclaw_core.cluster.specs import ContainerSpec, labels
from openclaw_core.config import RunConfig, load_config
from openclaw_core.config.cluster import ClusterConfig, MountConfig

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180)]

SAMPLES = Path(__file__).parents[1] / "npu_smi"
RUN = "check"


@pytest.fixture(scope="module")
def config(cluster_config: ClusterConfig, image_on_both: str) -> RunConfig:
    """A run whose containers have this machine's interpreter."""
    places = {"/usr/lib", "/usr/lib64", sys.prefix, sys.base_prefix}
    mounts = [
        MountConfig.model_validate({"source": place, "target": place}) for place in sorted(places) if Path(place).exists()
    ]
    changes = {"mounts": tuple(mounts), "python": sys.executable, "ray_object_store_mb": 100}
    return load_config("2nodes-sim", {}).model_copy(update={"cluster": cluster_config.model_copy(update=changes)})


@pytest.fixture(scope="module")
def code(cluster_config: ClusterConfig, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The digest of code that is on both hosts: a wheel with one file."""
    wheel = tmp_path_factory.mktemp("wheel") / "openclaw_rl-0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("openclaw_core/__init__.py", "")
    with Hosts(cluster_config) as connected:
        digest = push_code(connected, wheel, lambda _line: None)
        yield digest
        for host in connected.all:
            host.run("rm", "-rf", str(code_path(host, digest)))


def check(config: RunConfig, **options: object) -> list[HostCheck]:
    with Hosts(config.cluster) as connected:
        return check_hosts(config, RUN, connected, **options)  # pyright: ignore[reportArgumentType]


def red(rows: Sequence[HostCheck]) -> list[tuple[str, str]]:
    return [(row.host, row.check) for row in rows if not row.ok]


def one(rows: Sequence[HostCheck], host: str, name: str) -> HostCheck:
    found = [row for row in rows if (row.host, row.check) == (host, name)]
    assert len(found) == 1, [str(row) for row in rows if row.host == host]
    return found[0]


def with_host(config: RunConfig, name: str, **changes: object) -> RunConfig:
    hosts = tuple(host.model_copy(update=changes) if host.name == name else host for host in config.cluster.hosts)
    return config.model_copy(update={"cluster": config.cluster.model_copy(update={"hosts": hosts})})


def test_two_simulated_hosts_are_fit_for_a_run_but_for_its_model(config: RunConfig, hosts: Hosts, code: str):
    rows = check(config, code=code)
    assert red(rows) == [("node-a", "model")], "\n".join(map(str, rows))
    seen = {row.check for row in rows}
    assert seen >= {"ssh", "clock", "docker", "image", "work_root", "disk", "memory", "ports", "interface", "other hosts"}
    assert one(rows, "node-a", "other hosts").value == "node-b answer"
    assert one(rows, "node-b", "interface").value == f"eth0 {config.cluster.hosts[1].reached_at}, up"
    assert "megatron" in one(rows, "node-a", "megatron.core").value
    # What containers import is the code that was pushed.
    assert f"/openclaw/code/{code}/openclaw_core" in one(rows, "node-a", "openclaw_core").value
    assert one(rows, "node-b", "code").ok
    for host in hosts.all:
        assert "openclaw-check" not in host.run("ls", "-a", str(host.work_root)).stdout
        with Engine(host) as engine:
            assert engine.of_run(RUN) == []


def test_code_that_was_changed_on_a_host_is_red(config: RunConfig, hosts: Hosts, code: str):
    changed = hosts.named("node-b")
    file = code_path(changed, code) / "openclaw_core/__init__.py"
    changed.write(file, b"changed = True\n")
    try:
        assert ("node-b", "code") in red(check(config, code=code))
    finally:
        changed.write(file, b"", mode=0o644)


def test_a_host_that_is_cut_off_is_one_red_row_and_the_other_one_misses_it(config: RunConfig, two_hosts: Simulation):
    two_hosts.cut("node-b")
    try:
        rows = check(config)
    finally:
        two_hosts.mend("node-b")
    assert red(rows) == [("node-a", "other hosts"), ("node-b", "ssh")], "\n".join(map(str, rows))
    assert [row.check for row in rows if row.host == "node-b"] == ["ssh"]
    assert "node-b" in one(rows, "node-a", "other hosts").value


def test_an_engine_and_an_image_that_are_not_there(config: RunConfig):
    other = config.model_copy(update={"cluster": config.cluster.model_copy(update={"image": "none-such:1"})})
    rows = check(with_host(other, "node-b", docker_socket=Path("/nowhere/docker.sock")))
    assert red(rows) == [("node-a", "image"), ("node-b", "docker")], "\n".join(map(str, rows))
    assert "/nowhere/docker.sock" in one(rows, "node-b", "docker").value


def test_a_shared_work_root_is_warned_of_and_a_container_that_cannot_start_is_red(config: RunConfig):
    broken = config.model_copy(update={"cluster": config.cluster.model_copy(update={"python": "/no/python"})})
    rows = check(with_host(broken, "node-b", work_root=config.cluster.hosts[0].work_root))
    assert red(rows) == [("node-a", "container"), ("node-b", "container")]
    assert "/no/python" in one(rows, "node-a", "container").value
    shared = one(rows, "node-b", "work_root")
    assert shared.ok and "shared with node-a" in shared.value and shared.advice


@contextlib.contextmanager
def container(host: Host, run: str, role: str) -> Iterator[ContainerSpec]:
    """One that sleeps, with a run's labels."""
    spec = ContainerSpec(
        host.name, f"oc-{run}-{role}", role, "openclaw-sim:1", ("sleep", "600"), labels=labels(run, host.config, role)
    )
    with Engine(host) as engine:
        engine.start(spec)
        try:
            yield spec
        finally:
            engine.remove([spec.name], grace_s=0)


def test_another_runs_container_is_red_and_one_of_this_run_owns_the_ports(config: RunConfig, hosts: Hosts):
    head = hosts.named("node-a")
    with container(hosts.named("node-b"), "old", "worker"), container(head, RUN, "head"), listener(head, config.ports.gateway):
        rows = check(config)
    assert red(rows) == [("node-b", "another run")]
    assert "old has oc-old-worker here, running" in one(rows, "node-b", "another run").value
    assert one(rows, "node-a", "ports").value == "in use by this run, which is alive"


@contextlib.contextmanager
def listener(host: Host, port: int) -> Iterator[None]:
    """Something that listens in the host's namespace until its input ends."""
    script = f"import socket, sys; s = socket.create_server(('', {port})); print('up', flush=True); sys.stdin.read()"
    line = host.line(sys.executable, "-c", script)
    with subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdin is not None
        assert process.stdout.readline() == b"up\n"
        yield
        process.stdin.close()


def test_a_port_is_taken_on_the_host_that_opens_it_and_not_elsewhere(config: RunConfig, hosts: Hosts):
    head, other = hosts.named("node-a"), hosts.named("node-b")
    with listener(other, config.ports.gateway), listener(head, config.ports.control):
        rows = check(config)
    assert red(rows) == [("node-a", "ports")]
    assert one(rows, "node-a", "ports").value == f"{config.ports.control} (ports.control) is taken"


@contextlib.contextmanager
def sleeper() -> Iterator[int]:
    with subprocess.Popen(["sleep", "600"]) as process:
        try:
            yield process.pid
        finally:
            process.kill()


def stand_in(directory: Path, pids: dict[str, int]) -> str:
    """An npu-smi that prints the busy sample with these pids in place of its own."""
    text = (SAMPLES / "a2_busy.txt").read_text()
    for old, new in pids.items():
        text = text.replace(f"| {old} ", f"| {new} ")
    (directory / "table").write_text(text)
    program = directory / "npu-smi"
    program.write_text(f"#!/bin/sh\nexec cat '{directory / 'table'}'\n")
    program.chmod(0o755)
    return str(program)


def pid_of(host: Host, spec: ContainerSpec) -> int:
    """Of the command in a container, as its host counts."""
    with Engine(host) as engine:
        return max(int(row[1]) for row in engine.client.containers.get(spec.name).top()["Processes"])


@pytest.fixture
def npus(config: RunConfig) -> RunConfig:
    """The same hosts, said to have 8 NPUs each."""
    return with_host(with_host(config, "node-a", npus=8), "node-b", npus=8)


def test_processes_on_npus_are_told_with_their_container(npus: RunConfig, tmp_path: Path):
    with Hosts(npus.cluster) as connected, sleeper() as alone:
        head = connected.all[0]
        with container(head, RUN, "head") as ours, container(head, "old", "worker") as old:
            pids = {"70411": pid_of(head, ours), "81002": pid_of(head, old), "81003": alone}
            rows = check(npus, npu_smi=(stand_in(tmp_path, pids),))
    told = [row.value for row in rows if (row.host, row.check) == ("node-a", "npu processes")]
    assert any(
        f"pid {pids['81002']} (sleep 600), 36,370 MB on NPU 2, container oc-old-worker of run old" in value for value in told
    )
    assert any(f"pid {alone} (sleep 600), 36,364 MB on NPU 3, no container" in value for value in told)
    assert not any(f"pid {pids['70411']} " in value for value in told)
    assert one(rows, "node-a", "npu").value == "8 x 910B3 (A2), npu-smi 25.2.0"
    assert "/dev/davinci0" in one(rows, "node-a", "container").value


def test_only_recorded_processes_are_ended_and_all_are_shown(npus: RunConfig, tmp_path: Path):
    told: list[str] = []
    with Hosts(npus.cluster) as connected, sleeper() as orphan, sleeper() as foreign:
        head = connected.all[0]
        with container(head, RUN, "head") as ours:
            places = (stand_in(tmp_path, {"70411": pid_of(head, ours), "70412": orphan, "81002": foreign}),)
            recorded = record(find_holders(head, places), RUN)
            assert [each.pid for each in recorded] == [pid_of(head, ours)]
        # Gone with its container; what the run had recorded besides is still there.
        recorded += (look_at(head, [orphan])[orphan].key,)
        swept = end_orphans(head, recorded, told.append, grace_s=3, places=places)
        assert [holder.pid for holder in swept.ended] == [orphan] and swept.left == ()
        assert foreign in [holder.pid for holder in swept.foreign]
        assert foreign in look_at(head, [foreign]) and orphan not in living(head, orphan)
    assert any(f"pid {orphan} (sleep 600)" in line and "left behind by this run" in line for line in told)
    assert any(f"pid {foreign} (sleep 600)" in line and "left alone" in line for line in told)


def living(host: Host, pid: int) -> set[int]:
    """The pid, unless it is gone or a zombie that this process has not waited for yet."""
    state = host.run("cat", f"/proc/{pid}/stat", check=False).stdout.rpartition(") ")[2][:1]
    return {pid} if state not in ("", "Z") else set()


def test_a_host_without_npus_has_no_holders(hosts: Hosts):
    assert find_holders(hosts.head) == ()


def test_a_host_without_npu_smi_says_where_it_was_looked_for(npus: RunConfig):
    row = one(check(npus, npu_smi=("no-npu-smi", "/nowhere/npu-smi")), "node-b", "npu")
    assert not row.ok and "looked for no-npu-smi, /nowhere/npu-smi" in row.value
