"""Owned processes, with real children."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from openclaw_core.cluster.errors import ClusterError
from openclaw_core.cluster.processes import Processes

SLEEP = [sys.executable, "-c", "import time; time.sleep(60)"]
STUBBORN = [
    sys.executable,
    "-c",
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready', flush=True); time.sleep(60)",
]
PARENT = [
    sys.executable,
    "-c",
    "import subprocess, sys, time\n"
    "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
    "print(child.pid, flush=True); time.sleep(60)",
]

HEADLESS = [
    sys.executable,
    "-c",
    "import ctypes, os, threading, time\n"
    "threading.Thread(target=lambda: (time.sleep(1), os._exit(0))).start()\n"
    "ctypes.CDLL(None).pthread_exit(None)",
]
"""Its main thread ends before another one does, as it may be with a process that is killed."""


@pytest.fixture
def processes(tmp_path: Path):
    book = Processes(tmp_path / "processes")
    yield book
    for process in book.alive():
        book.stop(process.name, grace_s=0)


def first_line(log_file: Path) -> str:
    for _ in range(200):
        if log_file.exists() and "\n" in (text := log_file.read_text()):
            return text.splitlines()[0]
        time.sleep(0.05)
    raise AssertionError(f"nothing was written to {log_file}")


def command_line(pid: int) -> list[str]:
    """The kernel shows none for a moment after the program was replaced."""
    for _ in range(200):
        if line := psutil.Process(pid).cmdline():
            return line
        time.sleep(0.05)
    raise AssertionError(f"process {pid} has no command line")


def test_a_started_process_is_found_again_by_its_record(processes: Processes, tmp_path: Path):
    started = processes.start("worker", SLEEP, log_file=tmp_path / "log")
    found = Processes(processes.directory).find("worker")
    assert found == started
    assert found.pid != psutil.Process().pid
    assert command_line(found.pid) == SLEEP


def test_it_lives_in_a_session_of_its_own_and_hears_the_given_environment(processes: Processes, tmp_path: Path):
    show = "import os; print(os.getsid(0) == os.getpid(), os.environ['COLOUR'], os.environ['HOME'] != '')"
    process = processes.start("worker", [sys.executable, "-c", show], log_file=tmp_path / "log", env={"COLOUR": "red"})
    assert process.wait(20) == 0
    assert (tmp_path / "log").read_text() == "True red True\n"


def test_the_exit_code_and_the_last_lines_are_at_hand(processes: Processes, tmp_path: Path):
    process = processes.start("worker", [sys.executable, "-c", "raise SystemExit('out of paper')"], log_file=tmp_path / "log")
    assert process.wait(20) == 1
    assert "out of paper" in process.log_tail()
    assert processes.find("worker") is None


def test_waiting_has_a_deadline(processes: Processes, tmp_path: Path):
    process = processes.start("worker", SLEEP, log_file=tmp_path / "log")
    with pytest.raises(ClusterError, match=rf"worker \(pid {process.pid}\) has not ended within 0.1 s"):
        process.wait(0.1)


def test_stop_ends_the_process_and_its_children(processes: Processes, tmp_path: Path):
    processes.start("parent", PARENT, log_file=tmp_path / "log")
    child = psutil.Process(int(first_line(tmp_path / "log")))
    assert processes.stop("parent")
    assert not child.is_running()
    assert processes.alive() == []


def test_stop_kills_what_ignores_sigterm_after_the_grace(processes: Processes, tmp_path: Path):
    process = processes.start("stubborn", STUBBORN, log_file=tmp_path / "log")
    first_line(tmp_path / "log")
    assert processes.stop("stubborn", grace_s=0.3)
    assert process.handle() is None


def test_stopping_what_has_ended_is_no_error(processes: Processes, tmp_path: Path):
    processes.start("worker", [sys.executable, "-c", ""], log_file=tmp_path / "log").wait(20)
    assert not processes.stop("worker")
    assert not processes.stop("never-started")


def test_stop_ends_what_a_dead_process_left_behind_and_leaves_no_zombie(processes: Processes, tmp_path: Path):
    parent = processes.start("parent", PARENT, log_file=tmp_path / "log")
    child = psutil.Process(int(first_line(tmp_path / "log")))
    psutil.Process(parent.pid).kill()
    while processes.find("parent"):
        time.sleep(0.01)
    assert child.is_running()
    assert not processes.stop("parent")
    assert not child.is_running() and not psutil.pid_exists(parent.pid)
    assert processes.recorded("parent") is None


def test_stop_waits_for_the_last_thread_of_a_dying_child_and_leaves_no_zombie(processes: Processes, tmp_path: Path):
    started = processes.start("dying", HEADLESS, log_file=tmp_path / "log")
    for _ in range(200):
        if started.handle() is None:
            break
        time.sleep(0.01)
    assert psutil.Process(started.pid).status() == psutil.STATUS_ZOMBIE
    assert not processes.stop("dying")
    assert not psutil.pid_exists(started.pid)


def test_a_reused_pid_is_never_ended(processes: Processes, tmp_path: Path):
    with subprocess.Popen(SLEEP) as stranger:
        processes.start("worker", [sys.executable, "-c", ""], log_file=tmp_path / "log").wait(20)
        record = processes.directory / "worker.json"
        record.write_text(json.dumps(json.loads(record.read_text()) | {"pid": stranger.pid, "started": time.time() - 3600}))
        assert processes.find("worker") is None
        assert not processes.stop("worker")
        assert stranger.poll() is None
        stranger.kill()


def test_one_name_is_one_process(processes: Processes, tmp_path: Path):
    process = processes.start("worker", SLEEP, log_file=tmp_path / "log")
    with pytest.raises(ClusterError, match=f"worker is running already, pid {process.pid}"):
        processes.start("worker", SLEEP, log_file=tmp_path / "log")


def test_a_missing_program_is_named(processes: Processes, tmp_path: Path):
    with pytest.raises(ClusterError, match="cannot start worker: there is no program 'no-such-program'"):
        processes.start("worker", ["no-such-program"], log_file=tmp_path / "log")


def test_an_owned_process_ends_with_its_block_even_when_that_fails(processes: Processes, tmp_path: Path):
    with pytest.raises(ZeroDivisionError), processes.owned("worker", SLEEP, log_file=tmp_path / "log") as process:
        assert process.handle() is not None
        _ = 1 / 0
    assert process.handle() is None
