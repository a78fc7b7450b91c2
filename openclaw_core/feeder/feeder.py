"""The feeder: simulated people who use the gateway as anyone would, problem after problem.

A task is the serial chain of the personas on one problem: each session's last answer is what the next persona quotes.
``sessions_in_flight`` tasks run at once. Nothing is stored here; what counts is in the service's ledger.
"""

from __future__ import annotations

import asyncio
import math
import random
import uuid
from collections import Counter
from collections.abc import Coroutine, Sequence
from contextlib import aclosing
from dataclasses import asdict, dataclass
from typing import Any, Literal, Never, TypeVar

import structlog

from openclaw_core.config.schema import RunConfig
from openclaw_core.feeder.client import GatewayClient
from openclaw_core.feeder.control import ControlClient
from openclaw_core.feeder.errors import TaskFailed
from openclaw_core.feeder.persona import Persona, load_personas
from openclaw_core.feeder.problems import Problem, ProblemStream, training_problems
from openclaw_core.feeder.simulator import ScriptedSimulator, Simulator
from openclaw_core.types import Message, TurnType

log = structlog.get_logger()

T = TypeVar("T")

POLL_S = 5.0
"""Between two looks at the service's state."""
LONGEST_PAUSE_S = 60.0
"""After tasks that failed one after the other."""


@dataclass(frozen=True, slots=True)
class FeederSummary:
    """What a feeder did until it ended. ``turns`` counts answers, ``satisfied`` sessions that ended with thanks."""

    ended: Literal["stopped", "finished"]
    tasks: int = 0
    sessions: int = 0
    turns: int = 0
    satisfied: int = 0
    failures: int = 0


async def run_feeder(
    config: RunConfig, base_url: str, api_key: str, control_url: str, control_token: str, stop: asyncio.Event
) -> FeederSummary:
    """Feed the gateway at ``base_url`` (with ``/v1``) until ``stop`` is set or the service has finished its steps.

    Waits for the service first. A feeder that is started again in a resumed run goes on where the one before it was.

    Raises:
        PersonaError, ProblemError: bad personas or problems; nothing was sent.
        FeederError: the service is away for too long, or does not accept the key.
    """
    personas = load_personas(config.feeder.persona_set, config.feeder.personas)
    patience_s = config.rollout.hold_max_s + config.cluster.start_deadline_s
    async with (
        aclosing(GatewayClient(config, base_url, api_key)) as gateway,
        aclosing(ControlClient(control_url, control_token, patience_s)) as control,
    ):
        feeder = Feeder(config, personas, gateway, control)
        ended = await _first_of(feeder.run(), _stopped(stop))
        summary = FeederSummary(ended, **feeder.counts)
    log.info("feeder_ended", **asdict(summary))
    return summary


class Feeder:
    """The tasks in flight, and what they have done so far."""

    def __init__(self, config: RunConfig, personas: Sequence[Persona], gateway: GatewayClient, control: ControlClient) -> None:
        self._config = config
        self._personas = personas
        self._gateway = gateway
        self._control = control
        self._tag = uuid.uuid4().hex[:8]
        self._past_first_session = [asyncio.Event() for _ in range(config.feeder.sessions_in_flight)]
        self.counts: Counter[str] = Counter()
        """By the names of FeederSummary."""

    async def run(self) -> Literal["finished"]:
        """Feed until the service has finished. Raises FeederError."""
        status = await self._control.wait_until_ready()
        problems = training_problems(self._config, position=status.problems)
        log.info("feeder_started", position=status.problems, tasks=len(self._past_first_session))
        workers = [self._work(index, problems) for index in range(len(self._past_first_session))]
        return await _first_of(self._finished(), *workers)

    async def _finished(self) -> Literal["finished"]:
        while (await self._control.status()).state != "finished":
            await asyncio.sleep(POLL_S)
        return "finished"

    async def _work(self, index: int, problems: ProblemStream) -> Never:
        """Tasks one after the other, for ever; one that fails is logged, and the next begins after a pause.

        The first tasks start in waves, one a persona, each once the wave before is past its first session. Else all
        would go through the personas in step, and the first batches would hold one persona only.
        """
        wave = math.ceil(len(self._past_first_session) / len(self._personas))
        if index >= wave:
            await self._past_first_session[index - wave].wait()
        failures_in_a_row = 0
        while True:
            problem = next(problems)
            try:
                await self._task(problem, self._past_first_session[index])
                failures_in_a_row = 0
                self.counts["tasks"] += 1
            except TaskFailed as error:
                failures_in_a_row += 1
                self.counts["failures"] += 1
                self._past_first_session[index].set()
                log.warning("task_failed", problem=problem.problem_id, in_a_row=failures_in_a_row, reason=str(error))
                await asyncio.sleep(min(LONGEST_PAUSE_S, 2.0 ** min(failures_in_a_row, 10)))

    async def _task(self, problem: Problem, past_first_session: asyncio.Event) -> None:
        """One session of each persona; each gets to quote the last answer of the session before. Raises TaskFailed."""
        previous = ""
        for persona in self._personas:
            previous = await self._session(persona, problem, previous)
            past_first_session.set()

    async def _session(self, persona: Persona, problem: Problem, previous: str) -> str:
        """Talk until the persona is satisfied or ``max_turns`` answers were had; the last one is returned."""
        session_id = f"{persona.name}-{problem.problem_id}-{self._tag}"
        person = self._person(persona, problem, previous)
        messages: list[Message] = [{"role": "user", "content": await person.first()}]
        turns = 0
        while True:
            answer = await self._gateway.chat(messages, TurnType.MAIN, session_id)
            reaction = await person.react(answer.text)
            turns += 1
            self.counts["turns"] += 1
            await self._control.outcome(session_id, persona.name, reaction, first=turns == 1, problem=problem.number)
            if reaction.satisfied or turns == self._config.feeder.max_turns:
                break
            messages += [{"role": "assistant", "content": answer.text}, {"role": "user", "content": reaction.message}]
        await self._gateway.close_session(session_id, reaction.message)
        self.counts["sessions"] += 1
        self.counts["satisfied"] += reaction.satisfied
        log.info("session_ended", session=session_id, persona=persona.name, turns=turns, satisfied=reaction.satisfied)
        return answer.text

    def _person(self, persona: Persona, problem: Problem, previous: str) -> Simulator:
        rng = random.Random(f"{self._config.feeder.seed}/{problem.problem_id}/{persona.name}")
        return ScriptedSimulator(persona, problem.question, previous, self._config.feeder.quote_words, rng)


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
