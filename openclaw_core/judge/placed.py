"""The scripted judge on a host of its own: an actor that the service asks, and that comes back after its host was away."""

from __future__ import annotations

import asyncio
import socket
from typing import Any, cast

import ray
import structlog
from ray.exceptions import RayError

from openclaw_core.cluster.pinning import on_prm_host
from openclaw_core.config.schema import RunConfig
from openclaw_core.judge.client import JudgeError, JudgeReply
from openclaw_core.judge.scripted import ScriptedJudge
from openclaw_core.log import configure_logging
from openclaw_core.planning.placement import place_ranks
from openclaw_core.types import NextState, Question

log = structlog.get_logger(__name__)


class _JudgeThere(ScriptedJudge):
    """The actor."""

    def __init__(self) -> None:
        super().__init__()
        configure_logging()
        log.info("judge_placed", host=socket.gethostname())


class PlacedJudge:
    """A JudgeClient. It keeps no state over there, so that a new process is as good as the one that was lost."""

    def __init__(self, config: RunConfig) -> None:
        deadline_s, host = config.judge.deadline_s, config.cluster.with_role("prm")[0].name
        there = on_prm_host(config.cluster, host, place_ranks(config))
        actor = cast(Any, ray.remote(_JudgeThere)).options(num_cpus=0, max_concurrency=16, max_restarts=-1, resources=there)
        self._actor, self._deadline_s = actor.remote(), deadline_s
        own = ScriptedJudge()
        self.model, self.prompt_version = own.model, own.prompt_version

    async def vote(self, question: Question, answer: str, next_state: NextState, vote_index: int) -> JudgeReply:
        """See JudgeClient. A call that is in flight when the host goes away hangs in Ray: it has a deadline of its own."""
        call = self._actor.vote.remote(question, answer, next_state, vote_index)
        try:
            async with asyncio.timeout(self._deadline_s):
                return await asyncio.wrap_future(call.future())
        except TimeoutError:
            raise JudgeError(f"the judge on its host did not answer within judge.deadline_s={self._deadline_s:g}") from None
        except RayError as error:
            raise JudgeError(f"the judge on its host cannot be asked: {error}") from error

    async def close(self) -> None:
        """End the actor."""
        cast(Any, ray).kill(self._actor)
