"""The judge of a turn: M votes on each of the two questions, all at once, then the majority."""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import replace

import structlog

from openclaw_core.judge.client import (
    Ballot,
    JudgeClient,
    JudgeError,
    JudgeOverflow,
    JudgeRefused,
    JudgeReply,
    JudgeUnavailable,
)
from openclaw_core.judge.parsing import parse_vote
from openclaw_core.judge.prompting import shown_answer
from openclaw_core.judge.stats import JudgeStats
from openclaw_core.judge.voting import Refuse, choose_hints, has_quorum, majority, quorum
from openclaw_core.types import Judgement, NextState, Question, Turn, Vote

log = structlog.get_logger()

FIRST_WAIT_S = 0.5
LONGEST_WAIT_S = 15.0
"""Between two calls for one vote. A judge that wants to be left alone for longer fails the vote; the turn waits."""


def _allow(hint: str) -> None:
    return None


class Judge:
    """Asks ``client`` for ``votes`` (M) votes a question. ``deadline_s``: of one call. ``retries``: more calls for a vote.

    ``max_concurrent`` calls are in flight together, over all turns; waiting for one's turn is not part of the deadline.
    """

    def __init__(
        self,
        client: JudgeClient,
        *,
        votes: int,
        min_hint_chars: int,
        max_candidates: int,
        deadline_s: float,
        retries: int,
        max_concurrent: int = 32,
    ) -> None:
        self.client, self.votes = client, votes
        self._min_hint_chars, self._max_candidates = min_hint_chars, max_candidates
        self._deadline_s, self._retries = deadline_s, retries
        self._calls = asyncio.Semaphore(max_concurrent)
        self.stats = JudgeStats()

    async def judge(
        self, turn: Turn, next_state: NextState, *, kept: Ballot | None = None, refuse: Refuse = _allow
    ) -> Judgement:
        """Judge one answer by what came after it.

        ``kept``: votes of an earlier call that ended in JudgeUnavailable. Only questions without a quorum are asked again,
        and of those only the votes without a value. ``refuse``: which hints may not be used.

        Raises:
            JudgeUnavailable: a question got fewer than ceil(M/2) valid votes. Judge the turn again later; it is not a 0.
            JudgeOverflow: this turn does not fit the judge's context.
        """
        ballot = dict(kept or {})
        open_questions = [question for question in Question if not has_quorum([*ballot.values()], question, self.votes)]
        asked = [
            key
            for question in open_questions
            for key in ((question, index) for index in range(self.votes))
            if key not in ballot or ballot[key].value is None
        ]
        cast = await asyncio.gather(*(self._vote(question, turn, next_state, index) for question, index in asked))
        errors = [error for _, error in cast if error is not None]
        for error in errors:
            if isinstance(error, JudgeOverflow):
                raise error
        ballot.update({key: vote for key, (vote, _) in zip(asked, cast, strict=True)})
        if self._missing(ballot):
            raise self._unavailable(turn.turn_id, ballot, errors)
        return self._verdict(turn.turn_id, ballot, refuse)

    def by_policy(self, turn_id: str, ballot: Ballot, only: Question, refuse: Refuse, policy: str) -> Judgement | None:
        """The verdict by one question alone, the other left out: reward 0, or no hints. None where it has no quorum."""
        if only in self._missing(ballot):
            return None
        verdict = self._verdict(turn_id, ballot, refuse)
        if only is Question.REWARD:
            return replace(verdict, hints=(), refused=(), policy=policy)
        return replace(verdict, reward=0, policy=policy)

    def choose_again(self, judgement: Judgement, refuse: Refuse) -> Judgement:
        """The same verdict with its hints chosen anew from its votes, because more is known about what to refuse."""
        hints, refused = choose_hints(judgement.votes, self._min_hint_chars, self._max_candidates, refuse)
        return replace(judgement, hints=hints, refused=refused)

    async def close(self) -> None:
        """Close the client's connections."""
        await self.client.close()

    def _missing(self, ballot: Ballot) -> tuple[Question, ...]:
        votes = [*ballot.values()]
        return tuple(question for question in Question if not has_quorum(votes, question, self.votes))

    def _verdict(self, turn_id: str, ballot: Ballot, refuse: Refuse) -> Judgement:
        votes = tuple(ballot[question, index] for question in Question for index in range(self.votes))
        hints, refused = choose_hints(votes, self._min_hint_chars, self._max_candidates, refuse)
        return Judgement(
            turn_id=turn_id,
            reward=majority(votes),
            hints=hints,
            votes=votes,
            model=self.client.model,
            prompt_version=self.client.prompt_version,
            refused=refused,
        )

    def _unavailable(self, turn_id: str, ballot: Ballot, errors: list[JudgeError]) -> JudgeUnavailable:
        missing = self._missing(ballot)
        counts = {q: sum(vote.value is not None for (question, _), vote in ballot.items() if question is q) for q in missing}
        what = "; ".join(
            f"{question} question: {count} valid of {self.votes} votes, {quorum(self.votes)} are needed"
            for question, count in counts.items()
        )
        cause = str(errors[-1]) if errors else "what it wrote holds no verdict"
        return JudgeUnavailable(f"turn {turn_id}: {what}; last cause: {cause}", ballot, missing, tuple(errors))

    async def _vote(self, question: Question, turn: Turn, next_state: NextState, index: int) -> tuple[Vote, JudgeError | None]:
        """One vote, asked for ``retries`` + 1 times; one that never came has no value, and its last cause as its text."""
        attempt, wait_s = 0, 0.0
        while True:
            await asyncio.sleep(wait_s)
            try:
                return await self._call(question, turn, next_state, index), None
            except JudgeError as error:
                failed = Vote(question=question, value=None, hint=None, raw=str(error))
                self.stats.vote(failed)
                attempt += 1
                wait_s = max(_back_off_s(attempt), error.retry_after_s or 0.0)
                log.debug("vote_failed", turn=turn.turn_id, question=question, vote=index, attempt=attempt, cause=str(error))
                if isinstance(error, JudgeRefused) or attempt > self._retries or wait_s > LONGEST_WAIT_S:
                    return failed, error

    async def _call(self, question: Question, turn: Turn, next_state: NextState, index: int) -> Vote:
        """One call and what it says. Raises JudgeError."""
        async with self._calls:
            started = time.monotonic()
            try:
                async with asyncio.timeout(self._deadline_s):
                    reply = await self.client.vote(question, shown_answer(turn), next_state, index)
            except TimeoutError:
                raise JudgeError(f"the judge {self.client.model} gave no answer within {self._deadline_s:g} s") from None
            seconds = time.monotonic() - started
        vote = _read(question, reply, seconds)
        self.stats.vote(vote)
        if vote.value is None:
            log.info(
                "vote_unparsable", turn=turn.turn_id, question=question, vote=index, cut=reply.truncated, raw=reply.text[-200:]
            )
        return vote


def _read(question: Question, reply: JudgeReply, seconds: float) -> Vote:
    """An answer that was cut may have a verdict in it that was only considered: it is no vote."""
    vote = parse_vote(question, reply.text)
    if reply.truncated:
        vote = replace(vote, value=None, hint=None)
    return replace(vote, seconds=seconds, prompt_tokens=reply.prompt_tokens, completion_tokens=reply.completion_tokens)


def _back_off_s(attempt: int) -> float:
    """Exponential back-off with full jitter, so that the votes of many turns do not come back in step."""
    return random.uniform(0, min(LONGEST_WAIT_S, FIRST_WAIT_S * 2**attempt))
