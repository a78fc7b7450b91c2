"""`openclaw-rl shell` for real: a pseudo-terminal here, SSH, and a container on a simulated host."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from openclaw_core.cluster.docker.containers import Engine
from openclaw_core.cluster.hosts import Hosts
from openclaw_core.cluster.simulation.mounts import simulated_mounts
from openclaw_core.cluster.specs import ContainerSpec, labels, mounts, ray_container
from openclaw_core.config import RunConfig, load_config
from openclaw_core.config.cluster import ClusterConfig
from openclaw_core.rundir import RunDir, create_run

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(120)]

RUN = "shell-test"


@pytest.fixture
def run(cluster_config: ClusterConfig, tmp_path: Path) -> RunDir:
    """A run on the two hosts, none of whose containers was started yet."""
    cluster = cluster_config.model_copy(update={"mounts": simulated_mounts()})
    config = load_config("2nodes-sim", {"paths.runs": str(tmp_path / "runs")}).model_copy(update={"cluster": cluster})
    return create_run(config, RUN)


@pytest.fixture
def head(run: RunDir, sim_image: str) -> Iterator[str]:
    """Its head's container, which does nothing."""
    config = run.config()
    spec = sleeping(config, sim_image)
    with Hosts(config.cluster) as hosts, Engine(hosts.head) as engine:
        engine.start(spec)
        try:
            yield spec.name
        finally:
            engine.remove([spec.name], grace_s=0)


def sleeping(config: RunConfig, image: str) -> ContainerSpec:
    cluster, host = config.cluster, config.cluster.head
    name, of = ray_container(config, RUN, host), labels(RUN, host, "head")
    seen = mounts(cluster, host, npu=False)
    return ContainerSpec(host.name, name, "head", image, ("sleep", "600"), mounts=seen, labels=of, hostname="in-the-container")


def command(run: RunDir, *words: str) -> list[str]:
    return [sys.executable, "-m", "openclaw_core.cli", "shell", *words, "--runs", str(run.path.parent)]


class Terminal:
    """A program with a terminal of its own, and what it has shown there."""

    def __init__(self, line: list[str]) -> None:
        self._here, there = pty.openpty()
        self.process = subprocess.Popen(line, stdin=there, stdout=there, stderr=there, start_new_session=True)
        os.close(there)
        self.shown = ""

    def type(self, line: str) -> None:
        os.write(self._here, f"{line}\n".encode())

    def until(self, pattern: str, deadline_s: float = 60) -> None:
        end = time.monotonic() + deadline_s
        while not re.search(pattern, self.shown):
            assert self._read() and time.monotonic() < end, f"{pattern} was not shown: {self.shown}"

    def end(self) -> int:
        """Its exit code."""
        while self._read():
            pass
        os.close(self._here)
        return self.process.wait(30)

    def _read(self) -> bool:
        with contextlib.suppress(OSError):  # how a terminal ends whose programs have ended
            if data := os.read(self._here, 4096):
                self.shown += data.decode(errors="replace")
                return True
        return False


def connection_folder(process: int) -> Path:
    """Of the ssh that a command line runs, or has become."""
    parent = psutil.Process(process)
    for each in (parent, *parent.children(recursive=True)):
        if found := re.search(r"ControlPath=(\S+)/\d+\.ctl", " ".join(each.cmdline())):
            return Path(found[1])
    raise AssertionError("no ssh runs")


def test_a_shell_opens_in_the_container_and_leaves_nothing_behind(run: RunDir, head: str) -> None:
    terminal = Terminal(command(run, "node-a", "--run-id", RUN))
    terminal.until(r"bash-\S+# ")
    folder = connection_folder(terminal.process.pid)
    assert folder.is_dir()
    # The shell has a terminal, and is where Ray is; the echo of what is typed has no sum in it.
    terminal.type("test -t 0 && echo $(hostname) has $((40 + 2))")
    terminal.until("in-the-container has 42")
    terminal.type("exit 7")
    assert terminal.end() == 7
    assert not folder.exists()


def test_the_newest_run_is_taken(run: RunDir, head: str) -> None:
    terminal = Terminal(command(run, "node-a"))
    terminal.until(r"bash-\S+# ")
    terminal.type("exit")
    assert terminal.end() == 0


def refused(run: RunDir, *words: str, code: int = 1) -> str:
    done = subprocess.run(command(run, *words), capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (code, "")
    return done.stderr.strip()


def test_a_host_that_there_is_not_is_told_with_those_that_there_are(run: RunDir) -> None:
    assert refused(run, "node-c") == "error: no host 'node-c' in the cluster; there are: node-a, node-b"


def test_a_host_without_a_container_of_the_run_says_so(run: RunDir, head: str) -> None:
    assert refused(run, "node-b") == (
        f"error: host node-b: container openclaw-{RUN}-worker of run {RUN} is not there; other containers of the run there: "
        "none; the stage launch-ray starts it"
    )


def test_a_container_that_has_ended_is_no_place_for_a_shell(run: RunDir, head: str) -> None:
    with Hosts(run.config().cluster) as hosts, Engine(hosts.head) as engine:
        engine.client.containers.get(head).kill()
    assert f"container {head} of run {RUN} is exited" in refused(run, "node-a")


def test_a_run_that_there_is_not_is_told_with_those_that_there_are(run: RunDir) -> None:
    assert refused(run, "node-a", "--run-id", "other", code=2).startswith("error: no run 'other' in ")


def test_a_run_on_this_machine_has_no_containers(tmp_path: Path) -> None:
    here = create_run(load_config("local-cpu", {"paths.runs": str(tmp_path / "runs")}), "here")
    assert refused(here, "node-a") == "error: run here has no containers: its processes are on this machine"
