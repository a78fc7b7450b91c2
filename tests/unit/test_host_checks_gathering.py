"""What a host is asked, run on this machine: the shell script with little around it, and the probe for containers."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path, PurePosixPath

import pytest

from openclaw_core.cluster.host_checks import inside as host_checks_inside
from openclaw_core.cluster.host_checks.facts import Clock, Peer, parse_facts
from openclaw_core.cluster.host_checks.looking import measure_clock, parse_inside
from openclaw_core.cluster.host_checks.script import Part, ask, split
from openclaw_core.cluster.hosts import Host
from openclaw_core.config.cluster import HostConfig, SshConfig
from tests.host_facts import RUN, SAMPLES


class ThisMachine(Host):
    """A host whose commands run here, without ssh, with ``path`` as PATH."""

    path: str | None = None

    def line(self, *command: str) -> list[str]:
        return ["env", f"PATH={self.path}", *command] if self.path else list(command)


@pytest.fixture
def machine(tmp_path: Path) -> ThisMachine:
    root = tmp_path / "root"
    root.mkdir()
    config = HostConfig(name="here", address="127.0.0.1", roles=("train",), npus=1, work_root=PurePosixPath(root))
    return ThisMachine(config, SshConfig(command_timeout_s=60), tmp_path / "none")


COREUTILS = ("cat", "cut", "date", "df", "dirname", "du", "nproc", "sort", "stat", "timeout", "tr", "uname")


@pytest.mark.parametrize("bare", [False, True])
def test_the_script_needs_no_more_than_a_shell_and_coreutils(machine: ThisMachine, tmp_path: Path, bare: bool):
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("env", "sh", *COREUTILS):
        (programs / name).symlink_to(shutil.which(name) or name)
    smi = tmp_path / "npu-smi"
    smi.write_text(f"#!/bin/sh\n[ $1 = info ] && echo noise >&2 && exec cat {SAMPLES / 'a2_idle.txt'}\n")
    smi.chmod(0o755)
    model = Path(machine.work_root) / "models/m/hf"
    model.mkdir(parents=True)
    (model / "_SUCCESS").write_text('{"source": "x", "files": {"a": [1, "2"]}}')
    machine.path = str(programs) if bare else None
    parts = ask(machine, run_id=RUN, model="m", token="t", peers=[machine], npu_smi=("no-such-npu-smi", str(smi)))
    facts = parse_facts(machine.config, parts, measure_clock(machine), ())
    assert facts.machine == os.uname().machine and facts.cores >= 1 and 0 < facts.available < facts.memory
    assert facts.disk.free > 0 and facts.disk.present > 0 and facts.disk.refused is None
    assert facts.disk.place == str(machine.work_root)
    assert not isinstance(facts.npus, str) and facts.npus is not None and len(facts.npus.chips) == 8
    assert abs(facts.clock.offset_s) <= facts.clock.error_s + 0.01
    assert facts.model is not None and len(facts.model) == 64
    assert (Path(machine.work_root) / ".openclaw-check-t-here").exists()
    if bare:
        assert facts.resolved is None
        assert facts.peers == (Peer("here", "not asked: there is no bash on this host"),)
    assert any(address.count(".") == 3 for each in facts.interfaces for address in each.addresses)


def test_a_script_that_finds_no_place_to_write_says_so(machine: ThisMachine, tmp_path: Path):
    config = machine.config.model_copy(update={"work_root": PurePosixPath("/proc/sys"), "npus": 0})
    host = ThisMachine(config, SshConfig(), tmp_path / "none")
    parts = ask(host, run_id=RUN, model="m", token="t", peers=[], npu_smi=())
    disk = parse_facts(config, parts, Clock(0, 0), ()).disk
    assert disk.place == "/proc/sys"
    assert disk.refused is not None and "/proc/sys/.openclaw-check-t-here" in disk.refused


def test_the_probe_inside_tells_paths_without_importing(tmp_path: Path):
    checkout = tmp_path / "stack/Megatron-LM"
    (checkout / "megatron/core").mkdir(parents=True)
    (checkout / "megatron/core/__init__.py").write_text("raise RuntimeError('imported')\n")
    (checkout / ".git").mkdir()
    (checkout / ".git/HEAD").write_text("3" * 40 + "\n")
    toolkit = tmp_path / "toolkit/share/info/runtime"
    toolkit.mkdir(parents=True)
    (toolkit / "version.info").write_text("Version=8.5.0\nversion_dir=8.5.0\n")
    source = Path(host_checks_inside.__file__).read_text()
    environment = {**os.environ, "PYTHONPATH": str(checkout), "ASCEND_HOME_PATH": str(tmp_path / "toolkit")}
    done = subprocess.run(
        [sys.executable, "-c", source, "--devices"], env=environment, cwd=tmp_path, capture_output=True, text=True, check=True
    )
    said = parse_inside(["noise", *done.stdout.splitlines()])
    assert not isinstance(said, str)
    assert (said.modules["megatron.core"].path, said.modules["megatron.core"].commit) == (
        str(checkout / "megatron/core"),
        "3" * 40,
    )
    assert said.modules["sglang"].path is None or said.modules["sglang"].commit is None
    assert said.cann == "8.5.0"
    assert said.devices is None and said.problem is not None and "npu" in said.problem


def test_a_container_that_says_nothing_of_use_is_a_reason():
    assert parse_inside(["python: not found"]) == "the container did not answer: python: not found"


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("b\t0\tSSH-2.0-x\t10.0.0.2 ", None),
        ("b\t0\tSSH-2.0-x\t", None),
        ("b\t0\tSSH-2.0-x\t127.0.1.1 ", "loopback"),
        ("b\t0\tHTTP/1.1 400\t", "something else"),
        ("b\t1\tb: Name or service not known\t", "Name or service not known"),
        ("b\t124\t\t", "no answer in time"),
    ],
)
def test_another_host_must_answer_with_its_own_ssh_server(machine: ThisMachine, line: str, problem: str | None):
    parts = ask(machine, run_id=RUN, model="m", token="t", peers=[], npu_smi=())
    facts = parse_facts(machine.config, {**parts, "peers": Part(line, 0)}, Clock(0, 0), ())
    found = facts.peers[0].problem
    assert found is None if problem is None else found is not None and problem in found


def test_parts_are_told_by_a_mark_that_no_output_can_have():
    text = "@@1 begin a\nx\n@@2 end 0\n\n@@1 end 3\n@@1 begin b\ncut off"
    assert split(text, "@@1") == {"a": Part("x\n@@2 end 0", 3)}
