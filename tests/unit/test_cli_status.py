"""`openclaw-rl status`: a run that is alive, and what is said of one whose service does not answer."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner, Result

from openclaw_core.cli import app
from openclaw_core.cluster.processes import Processes
from openclaw_core.cluster.ray_head import NAME as RAY_HEAD
from openclaw_core.config import load_config
from openclaw_core.errors import OpenClawError
from openclaw_core.loop.client import ControlClient
from openclaw_core.loop.control import ServiceState, create_control_app
from openclaw_core.loop.phases import PhaseRunner
from openclaw_core.loop.service import serving
from openclaw_core.rundir import RunDir, create_run
from openclaw_core.status import RunState, look, render
from openclaw_core.types import NextState
from tests.interrupts import interruptible
from tests.ports import free_ports
from tests.unit.test_collect import World
from tests.unit.test_ledger import make_turn

ROOT = Path(__file__).parents[2]
ERASE = b"\x1b[2K"
"""How a line of a terminal is emptied, to be drawn anew."""
SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]
ENGINES = [
    {"name": "engine-0", "state": "ready", "in_flight": 3, "restarts": 0, "version": 4},
    {"name": "engine-1", "state": "starting", "in_flight": 0, "restarts": 2, "version": None},
]


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return new_run(tmp_path, "r")


def new_run(directory: Path, name: str) -> RunDir:
    settings = {"paths.runs": str(directory / "runs"), "train.steps": 3, "rollout.batch_size": 2, **free_ports()}
    return create_run(load_config("local-cpu", settings), name)


def invoke(*words: str) -> Result:
    return CliRunner().invoke(app, ["status", *words])


@asynccontextmanager
async def service(run: RunDir, path: Path, token: str | None = None) -> AsyncIterator[World]:
    """The run's real control API over a loop that collects; its engines are told, not started."""
    world = World(path)
    state = ServiceState(run.run_id, 3, 2, token or run.secrets().control_token, loop=world.loop)
    state.phases, state.engines = PhaseRunner(world.loop), lambda: ENGINES
    async with serving(create_control_app(state, run.export), run.config(), "control"):
        yield world
    await state.phases.finish()
    await world.intake.stop()
    world.ledger.close()


@pytest.mark.parametrize("width", [80, 120])
async def test_a_live_run_shows_where_the_missing_turns_are(run: RunDir, tmp_path: Path, width: int) -> None:
    async with service(run, tmp_path) as world:
        with ControlClient.of(run, run.config()) as client:
            with pytest.raises(_Enough):
                await asyncio.to_thread(client.run_phase, 1, "collect", deadline_s=5, wait_s=0, on_wait=_give_up)
            world.intake.turn(make_turn("a"))
            world.intake.turn(make_turn("b"))
            world.intake.next_state("b", NextState("user", "Thanks!"))
            async with asyncio.timeout(5):
                while not world.intake.ready:
                    await world.intake.changed(0.01)
            picture = await asyncio.to_thread(look, run, run.config(), client)
    assert (picture.state, picture.stage, picture.ended) == (RunState.RUNNING, "train-loop", False)
    shown = text(picture, width)
    assert "[collect]  score  train  publish  report" in shown
    assert "1 of 2 turns" in shown and "1 wait for a next message" in shown and "0 wait for the judge" in shown
    assert "engine-0  ready  version 4, 3 in flight" in shown
    assert "engine-1  starting  version -, 0 in flight, restarted 2 times" in shown
    assert "health   no verdict yet" in shown
    assert max(map(len, shown.splitlines())) <= width


class _Enough(Exception):
    pass


def _give_up(_progress: str) -> None:
    raise _Enough


def text(picture: Any, width: int) -> str:
    console = Console(width=width, markup=False, highlight=False)
    with console.capture() as captured:
        console.print(render(picture))
    return "\n".join(line.rstrip() for line in captured.get().splitlines())


async def test_what_the_service_says_of_judge_health_and_step_is_shown(run: RunDir, tmp_path: Path) -> None:
    async with service(run, tmp_path) as world:
        world.intake.judge.outage.failed(("reward",), "401: set OPENCLAW_JUDGE_API_KEY", denied=True)  # type: ignore[arg-type]
        with ControlClient.of(run, run.config()) as client:
            picture = await asyncio.to_thread(look, run, run.config(), client)
        world.intake.judge.outage.stop()
    assert picture.service is not None
    assert "judge_unavailable" in text(picture, 100)
    ill = picture.service.health.model_copy(
        update={"step": 2, "state": "stop", "findings": [{"text": "OPD saturated: lower w_opd"}]}
    )
    metrics = {"step": 2, "rollout/reward_mean": -0.5, "perf/step_time": 12.34}
    told = picture.service.model_copy(
        update={"health": ill, "metrics": metrics, "step": 2, "next_step": 3, "eta_s": 3725.0, "error": "step 3, train: no"}
    )
    shown = text(replace(picture, service=told, last_metrics=metrics), 100)
    assert "stop after step 2" in shown and "OPD saturated: lower w_opd" in shown
    assert "reward -0.50, 12.3 s" in shown and "step 3 of 3, about 1:02:05 left" in shown
    assert "error    step 3, train: no" in shown


async def test_the_command_says_which_run_it_took_and_speaks_json(run: RunDir, tmp_path: Path) -> None:
    runs = str(run.path.parent)
    async with service(run, tmp_path):
        shown = await asyncio.to_thread(invoke, "--runs", runs)
        told = await asyncio.to_thread(invoke, "--runs", runs, "--json")
    assert shown.exit_code == 0 and shown.stderr == "run r: the newest of 1\n"
    assert "r  running  evaluate-before, step 1 of 3" in shown.stdout and "between two phases" in shown.stdout
    body = json.loads(told.stdout)
    assert (body["state"], body["stage"], body["steps"]) == ("running", "evaluate-before", 3)
    assert body["service"]["batch"] == {"ready": 0, "size": 2, "in_flight": 0, "unanswered": 0, "judging": 0, "queued": 0}
    assert body["service"]["engines"] == ENGINES


async def test_another_runs_service_on_the_port_is_not_taken_for_this_ones(run: RunDir, tmp_path: Path) -> None:
    async with service(run, tmp_path, token="another"):
        told = await asyncio.to_thread(invoke, str(run.path), "--json")
    assert told.exit_code == 3
    assert "is no service of this run" in json.loads(told.stdout)["silence"]


def test_a_run_whose_service_was_never_started(run: RunDir) -> None:
    result = invoke(str(run.path))
    assert result.exit_code == 3
    assert "r  new  step 0 of 3 done" in result.stdout and "does not answer" in result.stdout


def test_a_run_that_is_gone_shows_its_last_lines_and_what_to_do(run: RunDir) -> None:
    lines = [f"line {number}" for number in range(100)]
    (run.logs / "service-10.log").write_text("\n".join([*lines, "\x1b[31mRuntimeError: gone"]))
    (run.logs / "service-9.log").write_text("an earlier attempt, written later")
    run.metrics_file.write_text('{"step": 1}\n{"step": 2, "train/grad_norm": 1.5}\n{"step": 3, "tr')
    result = invoke(str(run.path), "--once")
    assert result.exit_code == 3
    assert "r  stopped  step 2 of 3 done" in result.stdout and "grad norm 1.50" in result.stdout
    assert "␛[31mRuntimeError: gone" in result.stdout and "line 99" in result.stdout and "line 80" not in result.stdout
    assert "openclaw-rl run --run-id r" in result.stdout
    assert json.loads(invoke(str(run.path), "--json").stdout)["log"]["lines"][-2] == "line 99"


def test_a_service_that_was_lost_is_told_from_one_that_comes(run: RunDir) -> None:
    with Processes(run.processes).owned(RAY_HEAD, SLEEP, log_file=run.logs / "head.log"):
        first = json.loads(invoke(str(run.path), "--json").stdout)
        (run.logs / "service-1.log").write_text("lost\n")
        second = json.loads(invoke(str(run.path), "--json").stdout)
    assert [(told["state"], told["stage"]) for told in (first, second)] == [("starting", "launch-ray"), ("silent", "service")]
    assert [process["name"] for process in second["processes"]] == [RAY_HEAD]


def test_without_a_name_the_one_run_that_is_alive_is_taken_else_the_newest(run: RunDir, tmp_path: Path) -> None:
    newer = new_run(tmp_path, "newer")
    os.utime(run.config_file, (1, 1))
    runs = str(run.path.parent)
    assert invoke("--runs", runs).stderr == "run newer: the newest of 2\n"
    with Processes(run.processes).owned("feeder", SLEEP, log_file=run.logs / "feeder.log"):
        assert invoke("--runs", runs).stderr == "run r: the one that is alive\n"
        with Processes(newer.processes).owned("feeder", SLEEP, log_file=newer.logs / "feeder.log"):
            assert invoke("--runs", runs).stderr == "run newer: the newest of 2\n"


def test_no_run_at_all_and_a_name_that_nobody_has(run: RunDir, tmp_path: Path) -> None:
    nothing, other = invoke("--runs", str(tmp_path / "none")), invoke("other", "--runs", str(run.path.parent))
    assert isinstance(nothing.exception, OpenClawError) and "`openclaw-rl run` starts one" in str(nothing.exception)
    assert isinstance(other.exception, OpenClawError) and "there are: r" in str(other.exception)
    assert nothing.exception.exit_code == other.exception.exit_code == 2


DEADLINE_S = 120
"""For what a terminal is to show: a busy machine takes its time to start Python."""


class Terminal:
    """The command on a terminal of 80 columns, and all that it wrote."""

    def __init__(self, run: RunDir) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 80, 0, 0))
        command = [sys.executable, "-m", "openclaw_core.cli", "status", str(run.path), "--every", "0.2"]
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm"}
        self.process = subprocess.Popen(
            command, env=environment, stdin=slave, stdout=slave, stderr=slave, preexec_fn=interruptible
        )
        os.close(slave)
        self.written = b""
        self._deadline = time.monotonic() + DEADLINE_S

    def until(self, *words: bytes) -> None:
        """Read on until it has written each of ``words``."""
        while not all(word in self.written for word in words) and (more := self._more()):
            self.written += more

    def end(self) -> int:
        """Read to the end; returns the exit code."""
        while more := self._more():
            self.written += more
        os.close(self._master)
        return self.process.wait(timeout=60)

    def _more(self) -> bytes:
        # Nothing ends a thread that waits for a terminal for ever, and with it the test's loop.
        if time.monotonic() > self._deadline or not select.select([self._master], [], [], DEADLINE_S)[0]:
            self.process.kill()
            raise AssertionError(f"not within {DEADLINE_S} s; it wrote {self.written[-2000:]!r}")
        try:
            return os.read(self._master, 4096)
        except OSError:  # Linux tells the end of a terminal like this
            return b""


@pytest.mark.timeout(300)
async def test_on_a_terminal_the_picture_is_redrawn_until_ctrl_c(run: RunDir, tmp_path: Path) -> None:
    async with service(run, tmp_path):
        terminal = Terminal(run)
        await asyncio.to_thread(terminal.until, b"between two phases", ERASE)
        terminal.process.send_signal(signal.SIGINT)
        code = await asyncio.to_thread(terminal.end)
    assert code == 0 and b"Traceback" not in terminal.written
    assert terminal.written.count(b"between two phases") > 1


@pytest.mark.timeout(300)
async def test_on_a_terminal_the_last_picture_stays_when_the_run_has_ended(run: RunDir, tmp_path: Path) -> None:
    async with service(run, tmp_path):
        terminal = Terminal(run)
        await asyncio.to_thread(terminal.until, b"between two phases")
        (run.logs / "service-1.log").write_text("its last words\n")
    code = await asyncio.to_thread(terminal.end)
    assert code == 3 and b"stopped" in terminal.written and b"its last words" in terminal.written
