"""Trials beside a run: the real follower, the real gateway and a control API over HTTP; only the engine is scripted."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from openclaw_core.cluster.processes import Processes
from openclaw_core.evaluation import EvaluationError, following
from openclaw_core.evaluation.beside import finish_trials, start_trials
from openclaw_core.evaluation.convergence import SessionsReport
from openclaw_core.evaluation.following import follow, trial_questions
from openclaw_core.evaluation.sessions import trials_beside
from openclaw_core.evaluation.trials import Asked, Trials
from openclaw_core.feeder import FeederError, held_out_problems, load_personas
from openclaw_core.loop.client import ControlClient, ControlError
from openclaw_core.rundir import RunDir, RunSecrets, create_run
from tests.control_stub import TOKEN, StubService
from tests.gateway_world import API_KEY, World, build_world
from tests.models import tiny_llama

PERSONAS = load_personas("local", ["student", "ta", "teacher"])
NAMES = ("student", "ta", "teacher")
SMALL = {
    "evaluation.problems": 2,
    "evaluation.consecutive": 2,
    "evaluation.max_sessions": 5,
    "evaluation.convergence_seeds": 2,
    "rollout.max_response_tokens": 400,
    "model.context_length": 2000,
    "cluster.silence_s": 0.2,
    "cluster.start_deadline_s": 0.2,
}


class Service(StubService):
    """A run of which a test says how far it is."""

    version = 0
    sessions: dict[str, int] = {}  # noqa: RUF012
    finished = False

    def status(self) -> dict[str, Any]:
        state = "finished" if self.finished else "ready"
        return {**super().status(), "state": state, "version": self.version, "sessions": self.sessions}


@dataclass
class Followed:
    """A follower at work."""

    world: World
    service: Service
    directory: Path
    stop: asyncio.Event = field(default_factory=asyncio.Event)

    def trials(self) -> Trials:
        return Trials.open(self.directory, NAMES, self.world.config.evaluation)

    def answers(self) -> dict[str, dict[str, Any]]:
        return self.trials().answers()

    async def until(self, condition: Callable[[], bool]) -> None:
        await self.world.until(condition)

    @contextlib.asynccontextmanager
    async def running(self, seeds: int | None = None, key: str = API_KEY) -> AsyncIterator[asyncio.Task[SessionsReport | None]]:
        with (
            self.service.serving(self.world.config.ports.control) as url,
            ControlClient(url, TOKEN, silence_s=0) as control,
        ):
            async with self.world.serving_gateway():
                arguments = (self.world.config, self.world.gateway_url, key, control, self.directory, self.stop, seeds)
                task = asyncio.create_task(follow(*arguments))
                try:
                    yield task
                finally:
                    task.cancel()
                    await asyncio.gather(task, return_exceptions=True)


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("model"))


@pytest.fixture
def build(model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Followed]:
    monkeypatch.setattr(following, "POLL_S", 0.02)

    def make(script: Callable[[str], str], **overrides: Any) -> Followed:
        return Followed(build_world(model_dir, script, SMALL | overrides), Service(), tmp_path / "evaluation")

    return make


def repeats_the_question(prompt: str) -> str:
    """Satisfies the student; too cold for the teacher, and long enough for the TA."""
    question = re.findall(r"(?:homework question\.|Question:|student asked:) (.+)", prompt)[0]
    return f"One may put it like this: {question} ".replace("together", "in all") * 3


def answers_in_a_list(prompt: str) -> str:
    return "1. One\n2. Two"


async def test_seeds_are_asked_when_the_runs_sessions_begin(build: Callable[..., Followed]) -> None:
    followed = build(answers_in_a_list)
    world, service = followed.world, followed.service
    async with followed.running() as task:
        service.sessions = {"student": 2, "ta": 1}
        await followed.until(lambda: followed.answers().get("seed 2", {}).get("ta") == [False])
        await followed.until(lambda: [seed["student"] for seed in followed.answers().values()] == [[False, False]] * 2)
        world.engine.script, world.engine.weight_version, service.version = repeats_the_question, 1, 1
        service.sessions = {"student": 4, "ta": 3, "teacher": 3}
        await followed.until(lambda: len(world.engine.requests) >= 2 * (4 + 3 + 3))
        service.finished = True
        report = await task
    assert report is not None
    for trial in report.trials:
        assert {name: str(count) for name, count in trial.personas.items()} == {
            "student": "4",
            "ta": "3",
            "teacher": "≥ 5 (not in 3)",
        }
    assert followed.trials().skipped == 0
    assert not world.journal, "side turns are not captured"


async def test_each_seed_has_problems_and_sampling_seeds_of_its_own_and_quotes_its_own_answers(
    build: Callable[..., Followed],
) -> None:
    followed = build(repeats_the_question)
    world, service = followed.world, followed.service
    async with followed.running() as task:
        service.sessions, service.finished = {"student": 1, "ta": 1, "teacher": 1}, True
        await task
    asked = [world.engine.text(request) for request in world.engine.requests]
    questions = {seed: trial_questions(world.config, seed) for seed in (1, 2)}
    for seed in (1, 2):
        answer = repeats_the_question(f"Question: {questions[seed][0]}").strip()
        for persona in PERSONAS:
            message = persona.open(questions[seed][0], answer, world.config.feeder.quote_words)
            assert sum(message in text for text in asked) == 1
    every = [*questions[1], *questions[2], *(problem.question for problem in held_out_problems(world.config))]
    assert len(set(every)) == len(every)
    seeds = [request.sampling.seed for request in world.engine.requests]
    assert len(set(seeds)) == len(seeds) == 6
    assert all(seed is not None and seed >= 3_000_000 for seed in seeds), "the held-out evaluation has those below"


async def test_what_cannot_be_asked_in_time_is_skipped_and_counted(build: Callable[..., Followed]) -> None:
    followed = build(repeats_the_question, **{"evaluation.convergence_concurrency": 1})
    world, service = followed.world, followed.service
    world.engine.gate.clear()
    async with followed.running() as task:
        service.sessions = {"student": 2}
        await followed.until(lambda: world.engine.busy == 1)
        service.version = world.engine.weight_version = 1
        service.sessions = {"student": 3}
        await asyncio.sleep(0.3)
        world.engine.gate.set()
        service.finished = True
        report = await task
    assert report is not None
    reasons = [followed.trials().find(seed, "student", session) for session in (1, 2) for seed in (1, 2)]
    assert [one and one.skipped for one in reasons] == ["it was answered by version 1", *["version 1 is served by now"] * 3]
    assert followed.answers()["seed 1"]["student"] == [None, None, True]
    assert report.trials[0].personas["student"].unknown == 2
    assert followed.trials().skipped == 4


async def test_a_persona_whose_quote_was_skipped_is_skipped_too(build: Callable[..., Followed]) -> None:
    followed = build(repeats_the_question)
    followed.directory.mkdir()
    followed.trials().add(Asked(seed=1, persona="student", session=1, version=0, satisfied=None, skipped="no time"))
    followed.service.sessions, followed.service.finished = {"student": 1, "ta": 1}, True
    async with followed.running(seeds=1) as task:
        await task
    found = followed.trials().find(1, "ta", 1)
    assert found is not None
    assert found.skipped == "the answer that it quotes was skipped"


async def test_no_more_side_turns_than_allowed_are_in_flight(build: Callable[..., Followed]) -> None:
    followed = build(answers_in_a_list, **{"evaluation.convergence_concurrency": 3})
    followed.service.sessions, followed.service.finished = {"student": 5, "ta": 5}, True
    async with followed.running() as task:
        await task
    assert followed.world.engine.most_busy == 3
    assert len(followed.world.engine.requests) == 20


async def test_who_has_converged_is_asked_no_more(build: Callable[..., Followed]) -> None:
    followed = build(repeats_the_question, **{"feeder.personas": ["student"], "evaluation.convergence_concurrency": 1})
    followed.service.sessions, followed.service.finished = {"student": 99}, True
    async with followed.running() as task:
        report = await task
    assert report is not None
    assert report.joint.mean == 2
    assert len(followed.world.engine.requests) == 4


async def test_sessions_that_began_before_anybody_followed_are_skipped(build: Callable[..., Followed]) -> None:
    followed = build(repeats_the_question, **{"feeder.personas": ["student"]})
    followed.world.engine.weight_version = followed.service.version = 3
    followed.service.sessions = {"student": 2}
    async with followed.running() as task:
        await followed.until(lambda: followed.trials().skipped == 4)
        followed.service.sessions = {"student": 4}
        await followed.until(lambda: len(followed.world.engine.requests) == 4)
        followed.service.finished = True
        report = await task
    assert report is not None
    assert report.personas["student"].mean == 4


async def test_a_stop_gives_up_what_is_in_flight_and_a_second_start_goes_on(build: Callable[..., Followed]) -> None:
    followed = build(answers_in_a_list)
    world, service = followed.world, followed.service
    service.sessions = {"student": 1}
    async with followed.running() as task:
        await followed.until(lambda: len(followed.answers()) == 2)
        world.engine.gate.clear()
        service.sessions = {"student": 3}
        await followed.until(lambda: world.engine.busy == 4)
        followed.stop.set()
        await asyncio.wait_for(task, 30)
    assert [seed["student"] for seed in followed.answers().values()] == [[False], [False]]
    world.engine.gate.set()
    followed.stop.clear()
    asked = len(world.engine.requests)
    service.finished = True
    async with followed.running() as task:
        await task
    assert [seed["student"] for seed in followed.answers().values()] == [[False] * 3] * 2
    assert len(world.engine.requests) == asked + 4


async def test_a_run_that_another_process_follows_is_refused(build: Callable[..., Followed]) -> None:
    followed = build(answers_in_a_list)
    followed.service.sessions = {"student": 1}
    async with followed.running() as first:
        await followed.until(lambda: len(followed.answers()) == 2)
        with ControlClient(followed.world.control_url, TOKEN, silence_s=0) as control:
            arguments = (followed.world.config, followed.world.gateway_url, API_KEY, control, followed.directory)
            with pytest.raises(EvaluationError, match="another process follows this run already"):
                await follow(*arguments, asyncio.Event())
        assert not first.done()


async def test_a_gateway_that_refuses_the_key_ends_it(build: Callable[..., Followed]) -> None:
    followed = build(answers_in_a_list)
    followed.service.sessions = {"student": 1}
    async with followed.running(key="wrong") as task:
        with pytest.raises(FeederError, match="was refused"):
            await task


async def test_a_service_that_stays_away_ends_it(build: Callable[..., Followed]) -> None:
    followed = build(answers_in_a_list)
    world, stop = followed.world, asyncio.Event()
    with (
        ControlClient(world.control_url, TOKEN, silence_s=0) as control,
        pytest.raises(ControlError, match="does not answer"),
    ):
        await follow(world.config, world.gateway_url, API_KEY, control, followed.directory, stop)


async def test_no_seeds_are_an_error_that_says_what_to_set(build: Callable[..., Followed]) -> None:
    followed = build(answers_in_a_list, **{"evaluation.convergence_seeds": 0})
    async with followed.running() as task:
        with pytest.raises(EvaluationError, match=r"set evaluation\.convergence_seeds, or give --seeds"):
            await task


@pytest.fixture
def run_of() -> Callable[[Followed], RunDir]:
    """A run directory whose keys are those of the gateway and the control API."""

    def make(followed: Followed) -> RunDir:
        config = followed.world.config
        paths = config.paths.model_copy(update={"runs": followed.directory.parent})
        run = create_run(config.model_copy(update={"paths": paths}), "r")
        keys = RunSecrets(api_key=API_KEY, control_token=TOKEN, ray_token="none", server_key="none")
        run.secrets_file.write_text(json.dumps(asdict(keys)))
        return run

    return make


async def test_a_run_with_seeds_has_the_follower_as_a_process_beside_it(
    build: Callable[..., Followed], run_of: Callable[[Followed], RunDir]
) -> None:
    followed = build(answers_in_a_list)
    run, config = run_of(followed), followed.world.config
    followed.service.sessions, followed.service.finished = {"student": 1}, True
    with followed.service.serving(config.ports.control):
        async with followed.world.serving_gateway():
            process = start_trials(config, run)
            assert process is not None
            assert start_trials(config, run) == process
            await asyncio.to_thread(finish_trials, config, run)
    found = trials_beside([run])
    assert found is not None, process.log_tail()
    assert [str(trial.personas["student"]) for trial in found.trials] == ["≥ 3 (not in 1)"] * 2
    assert not Processes(run.processes).alive()


def test_a_follower_that_fails_is_a_warning_and_one_that_is_not_wanted_is_not_started(
    build: Callable[..., Followed], run_of: Callable[[Followed], RunDir]
) -> None:
    followed = build(answers_in_a_list)
    run, config = run_of(followed), followed.world.config
    finish_trials(config, run)  # none was started
    Processes(run.processes).start("trials", ["sh", "-c", "echo no gateway; exit 3"], log_file=run.logs / "trials.log")
    with capture_logs() as logs:
        finish_trials(config, run)
    (failure,) = [entry for entry in logs if entry["event"] == "trials_failed"]
    assert (failure["exit_code"], failure["last_lines"]) == (3, "no gateway")
    off = config.model_copy(update={"evaluation": config.evaluation.model_copy(update={"convergence_seeds": 0})})
    assert start_trials(off, run) is None
