"""Trials beside a run: seeds that meet its weights when its own sessions do, so that one training gives several trials.

When the run's persona begins its session i at weight version v, every seed asks that persona's first message to a problem
of its own, as a side turn, while v is served. What cannot be asked in time is skipped and counted, never asked of later
weights: that would flatter. Training is not waited for and does not wait.
"""

from __future__ import annotations

import asyncio
import fcntl
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from itertools import islice
from pathlib import Path

import structlog

from openclaw_core.config.schema import RunConfig
from openclaw_core.evaluation.asking import SEED_STRIDE, first_answer
from openclaw_core.evaluation.convergence import SessionsReport
from openclaw_core.evaluation.record import EvaluationError
from openclaw_core.evaluation.trials import Asked, Trials
from openclaw_core.feeder.client import Answer, GatewayClient
from openclaw_core.feeder.errors import TaskFailed
from openclaw_core.feeder.persona import Persona, load_personas
from openclaw_core.feeder.problems import ProblemStream, held_out_problems
from openclaw_core.feeder.rules import is_relevant, satisfies
from openclaw_core.feeder.sources import open_source
from openclaw_core.feeder.texts import first_words
from openclaw_core.loop.client import ControlClient, ServiceSilent, ServiceStatus

log = structlog.get_logger()

LOCK_FILE = "trials.lock"
POLL_S = 1.0
"""Between two looks at the run."""


async def follow(
    config: RunConfig,
    base_url: str,
    api_key: str,
    control: ControlClient,
    directory: Path,
    stop: asyncio.Event,
    seeds: int | None = None,
) -> SessionsReport | None:
    """Follow a run until it has finished its steps, or until ``stop`` is set; then everything in flight is given up at once.

    ``base_url`` ends in ``/v1``; ``seeds``: default ``evaluation.convergence_seeds``. Results are ``directory/trials.jsonl``,
    a line each as it comes, and a second call goes on from there. Returns the sessions to convergence so far, or None where
    nothing was asked.

    Raises:
        EvaluationError: no seeds, stored trials that cannot be read, or another process that follows the run.
        FeederError: bad personas or problems, or a gateway that refuses the key.
        ControlError: the service is away for too long.
    """
    seeds = config.evaluation.convergence_seeds if seeds is None else seeds
    if seeds < 1:
        raise EvaluationError("there are no seeds to ask; set evaluation.convergence_seeds, or give --seeds, 5 as in the paper")
    personas = load_personas(config.feeder.persona_set, config.feeder.personas)
    questions = {seed: trial_questions(config, seed) for seed in range(1, seeds + 1)}
    async with aclosing(GatewayClient(config, base_url, api_key)) as gateway, _alone(directory):
        trials = Trials.open(directory, [persona.name for persona in personas], config.evaluation)
        follower = Follower(config, personas, questions, gateway, trials)
        following = asyncio.create_task(_until_finished(config, control, follower))
        stopping = asyncio.create_task(stop.wait())
        try:
            await asyncio.wait((following, stopping), return_when=asyncio.FIRST_COMPLETED)
            if following.done():
                following.result()
        finally:
            for task in (following, stopping):
                task.cancel()
            await asyncio.gather(following, stopping, return_exceptions=True)
            await follower.stop()
    log.info("following_ended", seeds=seeds, skipped=trials.skipped)
    return trials.report()


def trial_questions(config: RunConfig, seed: int) -> tuple[str, ...]:
    """The problems of one trial: its own, and none of the held-out ones. Raises ProblemError."""
    held_out = frozenset(problem.question for problem in held_out_problems(config))
    source, feeder = open_source(config.feeder.problems), config.feeder
    stream = ProblemStream(source, "held_out", config.evaluation.seed + seed, feeder.max_question_chars, exclude=held_out)
    return tuple(problem.question for problem in islice(stream, config.evaluation.max_sessions))


@asynccontextmanager
async def _alone(directory: Path) -> AsyncIterator[None]:
    """Nobody else follows the same run meanwhile. Raises EvaluationError where somebody does."""
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / LOCK_FILE).open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise EvaluationError(
                f"another process follows this run already ({directory / LOCK_FILE} is locked), as a run with "
                "evaluation.convergence_seeds does by itself; read its results without --follow"
            ) from None
        yield


async def _until_finished(config: RunConfig, control: ControlClient, follower: Follower) -> None:
    """Hand the follower what the service says, until the run has finished and everything is answered."""
    patience_s = config.cluster.silence_s + config.cluster.start_deadline_s
    heard = time.monotonic()
    while True:
        try:
            status = await asyncio.to_thread(control.status, 0)
            heard = time.monotonic()
        except ServiceSilent:  # it may be starting again
            if time.monotonic() - heard > patience_s:
                raise
            status = None
        if status is not None and status.serving:
            follower.observe(status)
            if status.state == "finished":
                return await follower.drained()
        follower.check()
        await asyncio.sleep(POLL_S)


class Follower:
    """The side turns in flight. ``questions``: seed → one for each session."""

    def __init__(
        self,
        config: RunConfig,
        personas: Sequence[Persona],
        questions: Mapping[int, Sequence[str]],
        gateway: GatewayClient,
        trials: Trials,
    ) -> None:
        self._config, self._personas, self._questions = config, personas, questions
        self._gateway, self._trials = gateway, trials
        self._places = asyncio.Semaphore(config.evaluation.convergence_concurrency)
        self._begun = dict.fromkeys((persona.name for persona in personas), 0)
        self._version: int | None = None
        self._tasks: dict[tuple[int, str, int], asyncio.Task[None]] = {}

    def observe(self, status: ServiceStatus) -> None:
        """Ask what the run's people have begun since the last call, at the version that is served now."""
        # Of what had begun before the first look, the version is known only while there has been but one.
        unseen = self._version is None and status.version > 0
        self._version = status.version
        for index, persona in enumerate(self._personas):
            known = self._begun[persona.name]
            begun = max(known, min(status.sessions.get(persona.name, 0), self._config.evaluation.max_sessions))
            self._begun[persona.name] = begun
            for session in range(known + 1, begun + 1):
                for seed in self._questions:
                    if self._trials.find(seed, persona.name, session) is None:
                        self._begin(seed, index, session, status.version, unseen)

    def check(self) -> None:
        """Raise what has made a side turn fail, if it is more than a passing thing, and forget those that are done."""
        for key, task in list(self._tasks.items()):
            if task.done():
                del self._tasks[key]
                task.result()

    async def drained(self) -> None:
        """Wait until everything is answered. Raises as ``check``."""
        await asyncio.gather(*self._tasks.values())

    async def stop(self) -> None:
        """Give up what is in flight."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    def _begin(self, seed: int, index: int, session: int, version: int, unseen: bool) -> None:
        persona = self._personas[index].name
        if not self._needed(seed, index):
            return
        if unseen:
            self._skip(seed, persona, session, version, "it began before anybody followed the run")
            return
        task = asyncio.create_task(self._ask(seed, index, session, version), name=f"{persona}-{seed}-{session}")
        self._tasks[seed, persona, session] = task

    def _needed(self, seed: int, index: int) -> bool:
        """Whether the persona's count is open, or the next one's is, which quotes it."""
        if not self._trials.settled(seed, self._personas[index].name):
            return True
        after = index + 1
        return after < len(self._personas) and self._personas[after].quotes and self._needed(seed, after)

    async def _ask(self, seed: int, index: int, session: int, version: int) -> None:
        """One side turn, once the persona that is quoted has its answer. Raises FeederError where asking on is pointless."""
        persona = self._personas[index]
        quoted = await self._quote(seed, index, session) if persona.quotes else ""
        async with self._places:
            if quoted is None:
                self._skip(seed, persona.name, session, version, "the answer that it quotes was skipped")
            elif version != self._version:
                self._skip(seed, persona.name, session, version, f"version {self._version} is served by now")
            elif self._needed(seed, index):
                question = self._questions[seed][session - 1]
                message = persona.open(question, quoted, self._config.feeder.quote_words)
                series = seed * len(self._personas) + index  # the first series are those of the held-out evaluation
                sampling_seed = self._config.evaluation.seed + series * SEED_STRIDE + session
                try:
                    answer = await first_answer(self._config, self._gateway, message, sampling_seed)
                except TaskFailed as error:
                    self._skip(seed, persona.name, session, version, str(error))
                else:
                    self._note(seed, persona, session, version, question, answer)

    async def _quote(self, seed: int, index: int, session: int) -> str | None:
        """The words of the persona before to the same problem; None where it has none."""
        before = self._personas[index - 1].name
        if (task := self._tasks.get((seed, before, session))) is not None:
            await asyncio.wait((task,))
        asked = self._trials.find(seed, before, session)
        return asked.quote if asked is not None else None

    def _note(self, seed: int, persona: Persona, session: int, version: int, question: str, answer: Answer) -> None:
        on_time = answer.version == version
        satisfied = satisfies(persona, answer.text, question)
        self._trials.add(
            Asked(
                seed=seed,
                persona=persona.name,
                session=session,
                version=version,
                satisfied=satisfied if on_time else None,
                relevant=is_relevant(persona.relevance, answer.text, question),
                truncated=answer.truncated,
                quote=first_words(answer.text, self._config.feeder.quote_words),
                skipped="" if on_time else f"it was answered by version {answer.version}",
            )
        )

    def _skip(self, seed: int, persona: str, session: int, version: int, reason: str) -> None:
        log.debug("side_turn_skipped", seed=seed, persona=persona, session=session, version=version, reason=reason)
        self._trials.add(Asked(seed=seed, persona=persona, session=session, version=version, satisfied=None, skipped=reason))
