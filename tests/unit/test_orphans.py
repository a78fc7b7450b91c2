"""Whose process holds an NPU's memory, and which ones a run may end."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from openclaw_core.cluster import orphans
from openclaw_core.cluster.hosts import Host
from openclaw_core.cluster.npu import Npus, parse_npus
from openclaw_core.cluster.orphans import Holder, Owner, Process, Recorded, holders, owners, record, to_end
from openclaw_core.config.cluster import HostConfig, SshConfig

SAMPLES = Path(__file__).parents[1] / "npu_smi"
OURS, THEIRS = "a" * 64, "b" * 64
BOOT = "11111111-2222-3333-4444-555555555555"


class ThisMachine(Host):
    """A host whose commands run here, without ssh."""

    def line(self, *command: str) -> list[str]:
        return list(command)


@pytest.fixture
def machine(tmp_path: Path) -> Host:
    return ThisMachine(HostConfig(name="here", roles=("train",), npus=8), SshConfig(), tmp_path / "none")


@pytest.fixture
def stubborn() -> Iterator[subprocess.Popen[bytes]]:
    """A process that ignores SIGTERM, with a name that looks like fields of /proc/<pid>/stat."""
    script = 'trap "" TERM; printf ") S 1 2" >/proc/$$/comm; echo; while :; do sleep 0.2; done'
    with subprocess.Popen(["sh", "-c", script], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
        process.kill()


def busy() -> Npus:
    return parse_npus((SAMPLES / "a2_busy.txt").read_text())


def process(pid: int, container: str | None, started: int = 1000) -> Process:
    return Process(Recorded(pid, started, BOOT), "python3 -m work", container)


def found() -> tuple[Holder, ...]:
    """Two processes of our run, one of a foreign container, one of none, and one that has just gone."""
    processes = {
        70411: process(70411, OURS),
        70412: process(70412, OURS),
        81002: process(81002, THEIRS),
        81003: process(81003, None),
    }
    return holders(busy(), processes, {OURS: Owner("openclaw-r-head", "r"), THEIRS: Owner("vllm", None)})


def test_each_holder_is_told_with_its_memory_its_npus_and_its_container():
    told = {holder.pid: str(holder) for holder in found()}
    assert told[70411] == "pid 70411 (python3 -m work), 54,600 MB on NPU 0, container openclaw-r-head of run r"
    assert told[81002] == "pid 81002 (python3 -m work), 36,370 MB on NPU 2, container vllm"
    assert told[81003].endswith("36,364 MB on NPU 3, no container")
    assert told[70419] == "pid 70419 (no name), 118 MB on NPU 0, not in /proc"


def test_memory_on_several_npus_is_one_holder():
    text = (SAMPLES / "a2_busy.txt").read_text().replace("70412", "70411")
    holder = holders(parse_npus(text), {}, {})[0]
    assert (holder.pid, holder.devices, holder.mb) == (70411, (0, 1), 109194)


def test_only_processes_in_containers_of_the_run_are_recorded():
    assert [each.pid for each in record(found(), "r")] == [70411, 70412]
    assert record(found(), "another") == ()


def test_only_what_was_recorded_is_ended():
    recorded = record(found(), "r")
    assert [holder.pid for holder in to_end(recorded, found())] == [70411, 70412]
    assert to_end((), found()) == ()


@pytest.mark.parametrize("change", [{"started": 1001}, {"boot": "another"}, {"pid": 81003, "started": 999}])
def test_a_pid_that_was_given_to_another_process_is_not_ended(change: dict[str, object]):
    recorded = [replace(record(found(), "r")[0], **change)]
    assert to_end(recorded, found()) == ()


def test_containers_are_known_by_id_with_the_run_of_their_label():
    listed = [
        {"Id": OURS, "Names": ["/openclaw-r-head"], "Labels": {"openclaw.run": "r"}},
        {"Id": THEIRS, "Names": ["/x"], "Labels": None},
    ]
    assert owners(listed) == {OURS: Owner("openclaw-r-head", "r"), THEIRS: Owner("x", None)}


@pytest.mark.parametrize(
    "cgroup",
    [f"4:memory:/docker/{OURS}", f"0::/system.slice/docker-{OURS}.scope", f"9:cpu:/parent/{OURS}\ncgroup 0::/"],
)
def test_the_container_is_told_by_the_cgroup(cgroup: str):
    fields = " ".join(str(number) for number in range(4, 60))
    text = f"boot {BOOT}\npid 7\nstat 7 (a) b) S {fields}\ncommand python3 -u x.py --key secret \ncgroup {cgroup}\n"
    assert orphans.parse_processes(text) == {7: Process(Recorded(7, 22, BOOT), "python3 -u x.py", OURS)}


def test_a_living_process_is_seen_as_its_host_sees_it(machine: Host, stubborn: subprocess.Popen[bytes]):
    seen = orphans.look_at(machine, [stubborn.pid, 2**22 + 1])
    assert list(seen) == [stubborn.pid]
    own = seen[stubborn.pid]
    assert own.key.boot == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert own.key.started == int(Path(f"/proc/{stubborn.pid}/stat").read_text().rpartition(") ")[2].split()[19])
    assert own.command == "sh" and own.container is None


def test_no_process_is_asked_for_where_there_is_none(machine: Host):
    assert orphans.look_at(machine, []) == {}


def test_sigkill_comes_after_the_grace_and_a_start_time_that_differs_saves(machine: Host, stubborn: subprocess.Popen[bytes]):
    own = orphans.look_at(machine, [stubborn.pid])[stubborn.pid]
    holder = Holder(stubborn.pid, "", (0,), 1, own, None)
    other = replace(holder, process=replace(own, key=replace(own.key, started=own.key.started + 1)))
    assert orphans._end(machine, [other], grace_s=1) == ()  # it is not there any more: somebody else has its pid
    assert stubborn.poll() is None
    rebooted = replace(holder, process=replace(own, key=replace(own.key, boot="another")))
    assert orphans._end(machine, [rebooted], grace_s=1) == ()
    assert stubborn.poll() is None
    before = time.monotonic()
    assert orphans._end(machine, [holder], grace_s=1) == ()
    assert time.monotonic() - before >= 1
    assert stubborn.wait(5) == -9
