"""The judge of a turn: M votes on each of the two questions, all at once, then the majority."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass

import structlog

from openclaw_core.config.schema import RunConfig
from openclaw_core.judge.client import JudgeClient, JudgeError, JudgeUnavailable
from openclaw_core.judge.parsing import parse_vote
from openclaw_core.judge.scripted import ScriptedJudge
from openclaw_core.judge.voting import NotEnoughVotes, accepted_hints, majority, require_quorum
from openclaw_core.types import Judgement, NextState, Question, Turn, Vote

log = structlog.get_logger()

FIRST_WAIT_S = 0.5
LONGEST_WAIT_S = 15.0


@dataclass(frozen=True)
class Judge:
    """Asks ``client`` for ``votes`` (M) votes a question. ``deadline_s`` holds for each try of a vote, in seconds."""

    client: JudgeClient
    votes: int
    min_hint_chars: int
    max_candidates: int
    deadline_s: float
    retries: int

    async def judge(self, turn: Turn, next_state: NextState) -> Judgement:
        """Judge one answer by what came after it.

        Raises:
            JudgeUnavailable: a question got fewer than ceil(M/2) valid votes. Judge the turn again later; it is not a 0.
        """
        questions = [question for question in Question for _ in range(self.votes)]
        ballots = [self._vote(question, turn, next_state, n % self.votes) for n, question in enumerate(questions)]
        votes = tuple(await asyncio.gather(*ballots))
        try:
            for question in Question:
                require_quorum(votes, question, self.votes)
        except NotEnoughVotes as error:
            raise JudgeUnavailable(f"turn {turn.turn_id}: {error}") from error
        return Judgement(
            turn_id=turn.turn_id,
            reward=majority(votes),
            hints=accepted_hints(votes, self.min_hint_chars, self.max_candidates),
            votes=votes,
        )

    async def _vote(self, question: Question, turn: Turn, next_state: NextState, index: int) -> Vote:
        """One vote, tried ``retries`` + 1 times; one that never came has no value, and the last cause as its raw text."""
        cause = ""
        for attempt in range(self.retries + 1):
            if attempt:
                await asyncio.sleep(_wait_s(attempt))
            try:
                async with asyncio.timeout(self.deadline_s):
                    raw = await self.client.vote(question, turn.answer, next_state, index)
            except TimeoutError:
                cause = f"no answer within {self.deadline_s:g} s"
            except JudgeError as error:
                cause = str(error)
            else:
                vote = parse_vote(question, raw)
                if vote.value is None:
                    log.warning("vote_unparsable", turn=turn.turn_id, question=question, vote=index, raw=raw[-200:])
                return vote
            log.warning("vote_failed", turn=turn.turn_id, question=question, vote=index, attempt=attempt + 1, cause=cause)
        return Vote(question=question, value=None, hint=None, raw=cause)


def _wait_s(attempt: int) -> float:
    """Exponential back-off with full jitter, so that the votes of many turns do not come back in step."""
    return random.uniform(0, min(LONGEST_WAIT_S, FIRST_WAIT_S * 2**attempt))


def build_judge(config: RunConfig) -> Judge:
    """The judge that ``config.judge`` describes. Raises JudgeError where its client cannot be had."""
    if config.judge.client != "scripted":
        raise JudgeError(f"judge.client={config.judge.client} is not available yet; set judge.client=scripted")
    return Judge(
        client=ScriptedJudge(),
        votes=config.judge.votes,
        min_hint_chars=config.judge.min_hint_chars,
        max_candidates=config.loss.max_candidates,
        deadline_s=config.judge.deadline_s,
        retries=config.judge.retries,
    )
