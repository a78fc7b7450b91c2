"""The feeder: simulated people who use the gateway as anyone would, problem after problem.

A task is the serial chain of the personas on one problem: each session's last answer is what the next persona quotes, or
finds in the files. ``sessions_in_flight`` tasks run at once. Nothing is stored here; what counts is in the service's ledger.
"""

from __future__ import annotations

import asyncio
import math
import random
import uuid
from collections.abc import Coroutine, Sequence
from contextlib import AsyncExitStack, aclosing
from pathlib import Path
from typing import Any, Literal, Never, TypeVar

import structlog

from openclaw_core.config.schema import RunConfig
from openclaw_core.feeder.bookkeeping import Bookkeeper, PositionFile
from openclaw_core.feeder.client_driver import open_driver
from openclaw_core.feeder.control import ControlClient
from openclaw_core.feeder.driver import Conversation, Driver, TaskSpace
from openclaw_core.feeder.errors import TaskFailed
from openclaw_core.feeder.openai_simulator import PlayedPersona, SimulatorModel, system_prompt
from openclaw_core.feeder.persona import Persona, load_personas
from openclaw_core.feeder.problems import Problem, ProblemStream, training_problems
from openclaw_core.feeder.simulator import Reaction, ScriptedSimulator, Simulator
from openclaw_core.feeder.summary import Counts, FeederSummary

log = structlog.get_logger()

T = TypeVar("T")

POLL_S = 5.0
"""Between two looks at the service's state."""
LONGEST_PAUSE_S = 60.0
"""After tasks that failed one after the other."""
TELL_S = 60.0
"""Between two lines in the log about what was done so far."""


async def run_feeder(
    config: RunConfig,
    base_url: str,
    api_key: str,
    control_url: str,
    control_token: str,
    stop: asyncio.Event,
    simulator_key: str | None = None,
) -> FeederSummary:
    """Feed a run's gateway at ``base_url`` (with ``/v1``) until ``stop`` is set or the service has finished its steps.

    Waits for the service first. A feeder that is started again in a resumed run goes on where the one before it was.
    ``simulator_key``: of the API of ``feeder.simulator=openai``.

    Raises:
        PersonaError, ProblemError: bad personas or problems; nothing was sent.
        FeederError: the service is away for too long, or a key is missing or not accepted.
    """
    patience_s = config.rollout.hold_max_s + config.cluster.start_deadline_s
    books = ControlClient(control_url, control_token, patience_s)
    return await _feed(config, base_url, api_key, books, stop, simulator_key)


async def feed_gateway(
    config: RunConfig,
    base_url: str,
    api_key: str,
    stop: asyncio.Event,
    simulator_key: str | None = None,
    position_file: Path | None = None,
) -> FeederSummary:
    """Feed any OpenAI-compatible gateway until ``stop`` is set or ``feeder.epochs`` are over.

    There is no service that counts: the place in the problems is kept in ``position_file``, if one is given. Raises as
    ``run_feeder`` does.
    """
    return await _feed(config, base_url, api_key, PositionFile(config.feeder, position_file), stop, simulator_key)


async def _feed(
    config: RunConfig, base_url: str, api_key: str, books: Bookkeeper, stop: asyncio.Event, simulator_key: str | None
) -> FeederSummary:
    personas = load_personas(config.feeder.persona_set, config.feeder.personas)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(aclosing(books))
        model = None
        if config.feeder.simulator == "openai":
            for persona in personas:
                system_prompt(persona, "")
            model = await stack.enter_async_context(aclosing(SimulatorModel(config.feeder, simulator_key)))
        driver = await stack.enter_async_context(aclosing(open_driver(config, base_url, api_key)))
        feeder = Feeder(config, personas, driver, books, model)
        ended = await _first_of(feeder.run(), _stopped(stop))
        summary = feeder.counts.summary(ended)
    log.info("feeder_ended", **summary.as_json())
    return summary


class Feeder:
    """The tasks in flight, and what they have done so far. ``model``: who plays the people; None: their files' texts."""

    def __init__(
        self,
        config: RunConfig,
        personas: Sequence[Persona],
        driver: Driver,
        books: Bookkeeper,
        model: SimulatorModel | None = None,
    ) -> None:
        self._config = config.feeder
        self._run_config = config
        self._personas = personas
        self._driver = driver
        self._books = books
        self._model = model
        self._with_files = config.feeder.driver == "openclaw_cli"
        self._tag = uuid.uuid4().hex[:8]
        self._past_first_session = [asyncio.Event() for _ in range(config.feeder.sessions_in_flight)]
        self.counts = Counts()

    async def run(self) -> Literal["finished", "exhausted"]:
        """Feed until the service has finished or the problems are over. Raises FeederError."""
        position = await self._books.begin()
        problems = await asyncio.to_thread(training_problems, self._run_config, position)
        log.info("feeder_started", position=position, tasks=len(self._past_first_session))
        return await _first_of(self._finished(), self._exhausted(problems), self._tell())

    async def _finished(self) -> Literal["finished"]:
        while not await self._books.finished():
            await asyncio.sleep(POLL_S)
        return "finished"

    async def _tell(self) -> Never:
        while True:
            await asyncio.sleep(TELL_S)
            log.info("feeder_progress", **{k: v for k, v in self.counts.summary("stopped").as_json().items() if k != "ended"})

    async def _exhausted(self, problems: ProblemStream) -> Literal["exhausted"]:
        try:
            async with asyncio.TaskGroup() as group:
                for index in range(len(self._past_first_session)):
                    group.create_task(self._work(index, problems))
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from errors
        return "exhausted"

    async def _work(self, index: int, problems: ProblemStream) -> None:
        """Tasks one after the other; one that fails is logged, and the next begins after a pause.

        The first tasks start in waves, one a persona, each once the wave before is past its first session. Else all
        would go through the personas in step, and the first batches would hold one persona only.
        """
        wave = math.ceil(len(self._past_first_session) / len(self._personas))
        if index >= wave:
            await self._past_first_session[index - wave].wait()
        failures_in_a_row = 0
        for problem in problems:
            self._books.given(problem)
            try:
                await self._task(problem, self._past_first_session[index])
                failures_in_a_row = 0
                self.counts.add(tasks=1)
            except TaskFailed as error:
                failures_in_a_row += 1
                self.counts.add(failures=1)
                self._past_first_session[index].set()
                log.warning("task_failed", problem=problem.problem_id, in_a_row=failures_in_a_row, reason=str(error))
            self._books.over(problem)
            if failures_in_a_row:
                await asyncio.sleep(min(LONGEST_PAUSE_S, 2.0 ** min(failures_in_a_row, 10)))
        self._past_first_session[index].set()

    async def _task(self, problem: Problem, past_first_session: asyncio.Event) -> None:
        """One session of each persona; each gets to quote the last answer of the session before. Raises TaskFailed."""
        previous = ""
        files = {name: text for persona in self._personas for name, text in persona.brings(problem.question).items()}
        async with self._driver.task(f"{problem.problem_id}-{self._tag}", files if self._with_files else {}) as space:
            for persona in self._personas:
                previous = await self._session(space, persona, problem, previous)
                past_first_session.set()

    async def _session(self, space: TaskSpace, persona: Persona, problem: Problem, previous: str) -> str:
        """Talk until the persona is done or ``max_turns`` answers were had; the last one is returned."""
        session_id = f"{persona.name}-{problem.problem_id}-{self._tag}"
        person = self._person(persona, problem, previous)
        message, turns = await person.first(), 0
        async with space.converse(session_id) as conversation:
            while True:
                answer = await conversation.say(message)
                reaction = await person.react(answer.text)
                turns += 1
                self.counts.add(turns=1, satisfied_first=turns == 1 and reaction.satisfied)
                await self._books.outcome(session_id, persona.name, reaction, first=turns == 1, problem=problem)
                if reaction.done or turns == self._config.max_turns:
                    break
                message = reaction.message
            await self._part(conversation, persona, reaction)
        self.counts.add(sessions=1, satisfied=reaction.satisfied, done=reaction.done)
        log.info("session_ended", session=session_id, persona=persona.name, turns=turns, satisfied=reaction.satisfied)
        return answer.text

    async def _part(self, conversation: Conversation, persona: Persona, reaction: Reaction) -> None:
        """Say the last word. With files the result is written down first, liked or not: the next person looks for it there."""
        request = persona.closing_request if self._with_files else None
        if request is None:
            await conversation.close(reaction.message)
            return
        sentinel = persona.sentinel if reaction.done else None
        words = reaction.message.replace(sentinel, "").strip() if sentinel else reaction.message
        await conversation.say(f"{words} {request}".strip())
        self.counts.add(turns=1)
        await conversation.close(sentinel)

    def _person(self, persona: Persona, problem: Problem, previous: str) -> Simulator:
        words = self._config.quote_words
        if self._model is not None:
            opening = persona.open(problem.question, previous, words, self._with_files)
            return PlayedPersona(persona, problem, opening, self._model)
        rng = random.Random(f"{self._config.seed}/{problem.problem_id}/{persona.name}")
        return ScriptedSimulator(persona, problem.question, previous, words, rng, self._with_files)


async def _stopped(stop: asyncio.Event) -> Literal["stopped"]:
    await stop.wait()
    return "stopped"


async def _first_of(*coroutines: Coroutine[Any, Any, T]) -> T:
    """Run them all until one ends, cancel the rest, and give its result or raise its error."""
    tasks = [asyncio.create_task(coroutine) for coroutine in coroutines]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return done.pop().result()
