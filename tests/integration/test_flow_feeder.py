"""The feeder task with the real feeder process, whose gateway does not answer yet; the flow against a foreign gateway."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from prefect import flow
from prefect.blocks.system import Secret
from pydantic import SecretStr

from blocks import SimulatorBlock
from flows.feeder import feeder as feeder_flow
from flows.parameters import open_run
from openclaw_core import feeding
from openclaw_core.cluster.processes import OwnedProcess, Processes
from openclaw_core.config import ConfigError, load_config
from openclaw_core.feeding import FeederGone, feeder_watch, start_feeder, stop_feeder
from openclaw_core.rundir import RunDir, create_run
from tasks.feeder import feeding as feeding_task
from tests.gateway_world import API_KEY, World, build_world
from tests.models import tiny_llama
from tests.ports import free_ports


@pytest.fixture
def run(tmp_path: Path) -> Iterator[RunDir]:
    run = create_run(load_config("local-cpu", {"paths.runs": str(tmp_path), **free_ports()}), "r")
    yield run
    stop_feeder(run)


def wait_for_feeder(run: RunDir, other_than: int | None = None) -> OwnedProcess:
    end = time.monotonic() + 60
    while time.monotonic() < end:
        feeder = Processes(run.processes).find("feeder")
        if feeder is not None and feeder.pid != other_than:
            return feeder
        time.sleep(0.1)
    raise AssertionError("no feeder was started")


@pytest.mark.usefixtures("prefect_server")
def test_a_feeder_that_dies_is_started_again_and_none_is_left_at_the_end(run: RunDir):
    @flow
    def beside() -> None:
        with feeding_task(str(run.path)) as switch:
            assert Processes(run.processes).find("feeder") is None
            switch.on.set()
            first = wait_for_feeder(run)
            psutil.Process(first.pid).kill()
            wait_for_feeder(run, other_than=first.pid)

    beside()
    assert Processes(run.processes).alive() == []


@pytest.mark.usefixtures("prefect_server")
def test_the_flow_ends_with_its_feeder_and_not_with_its_minutes(run: RunDir):
    def end_it() -> None:
        wait_for_feeder(run)
        stop_feeder(run)

    ending = threading.Thread(target=end_it)
    ending.start()
    ended = feeder_flow(run_dir=str(run.path), minutes=1000)
    ending.join()
    assert ended["status"] == "done"


def test_a_collection_gives_up_when_its_feeder_stays_away(run: RunDir, monkeypatch: pytest.MonkeyPatch):
    watch = feeder_watch(run)
    watch("no feeder was ever started: people feed this run")
    feeder = start_feeder(run)
    watch("it is alive")
    assert feeder.alive
    process = Processes(run.processes).recorded("feeder")
    assert process is not None
    psutil.Process(process.pid).kill()
    process.wait(10)
    watch("it may be started again")
    monkeypatch.setattr(feeding, "ABSENCE_S", 0.0)
    with pytest.raises(FeederGone, match="the feeder has ended, so nobody asks the model anything"):
        watch("it has been gone for too long")


def test_a_second_start_takes_up_the_feeder_that_is_alive(run: RunDir):
    assert start_feeder(run) == start_feeder(run)


@contextlib.contextmanager
def served(world: World) -> Iterator[None]:
    """The world's gateway in a thread of its own, as somebody else's."""
    ready, over = threading.Event(), threading.Event()

    async def serve() -> None:
        async with world.serving_gateway():
            ready.set()
            await asyncio.to_thread(over.wait)

    thread = threading.Thread(target=asyncio.run, args=[serve()])
    thread.start()
    assert ready.wait(30)
    try:
        yield
    finally:
        over.set()
        thread.join()


@pytest.mark.usefixtures("prefect_server")
def test_the_flow_feeds_any_gateway_with_keys_and_people_from_blocks(tmp_path: Path):
    rows = [{"question": f"Ann has {n} pens and buys {n + 1} more.", "ground_truth_answer": 2 * n + 1} for n in range(4)]
    (tmp_path / "problems.json").write_text(json.dumps(rows))
    room = {"rollout.max_response_tokens": 3000, "model.context_length": 8000}
    gateway = build_world(tiny_llama(tmp_path / "model"), lambda prompt: "An answer.", room)
    people = build_world(tmp_path / "model", lambda prompt: "Thanks! HOMEWORK_DONE", room)
    Secret(value=API_KEY).save("somebody-elses", overwrite=True)  # pyright: ignore[reportArgumentType]
    model = gateway.config.model.name
    SimulatorBlock(base_url=people.gateway_url, model_name=model, api_key=SecretStr(API_KEY)).save("players", overwrite=True)
    overrides = {"feeder.problems": f"file://{tmp_path / 'problems.json'}", "feeder.epochs": 1, "evaluation.problems": 1}
    overrides |= {"feeder.personas": ["student"], "feeder.persona_set": "homework", "feeder.simulator_max_tokens": 3000}
    with served(gateway), served(people):
        told = feeder_flow(url=gateway.gateway_url, key="somebody-elses", simulator="players", overrides=overrides, minutes=1)
    assert "ended exhausted" in told["detail"] and "sessions 3" in told["detail"]
    assert [state.text for _, state in gateway.of("next_state")] == ["Thanks! HOMEWORK_DONE"] * 3


@pytest.mark.usefixtures("prefect_server")
def test_a_run_gets_the_keys_of_its_blocks_and_none_is_in_its_configuration(tmp_path: Path):
    SimulatorBlock(api_key=SecretStr("sk-players")).save("players", overwrite=True)
    Secret(value="sk-judge").save("judge", overwrite=True)  # pyright: ignore[reportArgumentType]
    parameters = {"preset": "local-cpu", "simulator": "players", "judge_key": "judge", "run_id": "r"}
    run = open_run(parameters | {"overrides": {"paths.runs": str(tmp_path)}}, "flow-run")
    assert run.secrets().external_keys == {"simulator": "sk-players", "judge": "sk-judge"}
    assert run.config().feeder.simulator == "openai"
    assert "sk-" not in run.config_file.read_text()


@pytest.mark.usefixtures("prefect_server")
@pytest.mark.parametrize(
    ("parameters", "complaint"),
    [
        ({}, "needs either run_dir or url"),
        ({"run_dir": "runs/r", "url": "http://x/v1"}, "needs either run_dir or url"),
        ({"url": "http://x/v1"}, "url needs key"),
        ({"url": "http://x/v1", "key": "absent"}, "no secret block 'absent'"),
    ],
)
def test_a_feeder_flow_without_what_it_needs_says_so(parameters: dict[str, str], complaint: str):
    with pytest.raises(ConfigError, match=complaint):
        feeder_flow(**parameters)
